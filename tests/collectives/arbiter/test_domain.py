"""Arbiter, software switch and ranks as processes: decisions, faults and laws end to end."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time

import pytest

from presage.collectives.arbiter.client import ArbiterClient
from presage.collectives.core.view import Reason
from presage.serving.authentication.local_token import local_token
from tests.collectives.arbiter.support.processes import JobProcesses
from tests.collectives.arbiter.support.proxy import Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def domain(start_switch, start_arbiter):
    """Switch with one slot, and its arbiter."""
    switch = start_switch()
    return switch, start_arbiter(switch, "--lease", "1", "--horizon", "2")


def wait_for_inc(job, since_s=0.0, timeout_s=20.0):
    wait_until(lambda: job.inc_since(since_s), timeout_s)


def state_of(arbiter, name):
    return {job.job: job.state for job in arbiter.status().jobs}.get(name, "")


@pytest.mark.parametrize("agreement", ["in_band", "two_phase"])
def test_i1_i2_i3_i6_two_jobs_share_a_slot_and_no_number_is_split(
    start_switch, start_arbiter, start_job, agreement
):
    arbiter = start_arbiter(start_switch(), "--agreement", agreement)
    jobs = [start_job(arbiter.target, n, seconds=10, agreement=agreement) for n in ("a", "b")]
    for job in jobs:
        assert job.wait() == [0, 0]
        job.check_no_number_is_split()
    decided = {Reason[row[2]] for job in jobs for row in job.rows()}
    assert decided & {Reason.NO_OTHER_ARRIVAL, Reason.HIGHEST_SCORE}
    assert all(any(job.ways().values()) for job in jobs)


def test_i2_a_job_alone_uses_the_switch_whenever_a_decision_was_made(domain, start_job):
    _, arbiter = domain
    job = start_job(arbiter.target, "alone", ranks=3, seconds=3)
    assert job.wait() == [0, 0, 0]
    rows = [row for row in job.rows() if row[2] != Reason.OUTSIDE_WINDOW.name]
    assert len(rows) > 50
    assert sum(row[1] == "INC" for row in rows) >= 0.9 * len(rows)


def test_i3_a_job_that_cannot_be_predicted_counts_as_soon_with_its_reason(domain, start_job):
    _, arbiter = domain
    job = start_job(arbiter.target, "job", seconds=20, is_predictable=False)
    wait_for_inc(job)
    assert "cannot be predicted" in state_of(arbiter, "job")
    with ArbiterClient(arbiter.target) as client:
        wait_until(lambda: client.explain("job").reason == Reason.RESERVED)


def test_i4_a_job_does_not_wait_for_an_arbiter_that_is_stopped(domain, start_job):
    _, arbiter = domain
    job = start_job(arbiter.target, "job", seconds=8)
    wait_for_inc(job)
    arbiter.process.send_signal(signal.SIGSTOP)
    assert job.wait() == [0, 0]
    rows = job.rows()
    gaps = [b[3] - a[3] for a, b in itertools.pairwise(rows)]
    assert max(gaps) < 1.0
    assert rows[-1][1] == "RING"  # the window has ended
    arbiter.process.send_signal(signal.SIGCONT)


def test_one_arbiter_for_each_domain_a_second_one_is_refused(domain, start_arbiter):
    switch, _ = domain
    second = start_arbiter(switch)
    assert second.process.wait(10) == 1
    assert second.lines[-1].startswith("error: ")
    assert "another arbiter" in second.lines[-1]


def test_i7_a_restarted_switch_is_used_again(start_switch, start_arbiter, start_job, opened):
    first = start_switch()
    arbiter = start_arbiter(first, "--horizon", "2")
    job = start_job(arbiter.target, "job", seconds=30)
    wait_for_inc(job)
    port = first.port
    first.close()
    wait_until(lambda: arbiter.status().switches[0].problem)
    start_switch(port=port)
    wait_for_inc(job, time.time())
    job.check_no_number_is_split()


def test_i7_a_lost_journal_is_reported_and_splits_no_number(
    start_switch, start_arbiter, start_job, tmp_path
):
    switch = start_switch()
    arbiter = start_arbiter(switch, "--horizon", "2")
    job = start_job(arbiter.target, "job", seconds=30)
    wait_for_inc(job)
    epoch = arbiter.status().epoch
    arbiter.kill()
    for path in tmp_path.glob("arbiter.db*"):
        path.unlink()
    again = start_arbiter(switch, "--horizon", "2", port=arbiter.port)
    wait_for_inc(job, time.time() + 3)  # by a view of this arbiter
    found = again.status()
    assert found.epoch > epoch
    assert any("journal" in notice for notice in found.notices)
    assert job.rows()[-1][4] > epoch
    job.check_no_number_is_split()


def test_i7_the_slot_of_a_dead_job_is_freed_after_its_lease(domain, start_job):
    _, arbiter = domain
    # Both count as soon. By scores the job with the larger AllReduces has the slot, though its
    # name is the greater one. Two ranks would save nothing.
    soon = {"ranks": 3, "seconds": 60, "is_predictable": False}
    large = start_job(arbiter.target, "z-large", sizes=(400_000,), **soon)
    small = start_job(arbiter.target, "small", **soon)
    wait_until(lambda: state_of(arbiter, "small").startswith("arrivals"))
    wait_until(lambda: state_of(arbiter, "z-large").startswith("arrivals"))
    wait_for_inc(large, time.time())
    with ArbiterClient(arbiter.target) as client:
        wait_until(lambda: client.explain("small").reason == Reason.LOWER_SCORE)
    large.close()
    killed_s = time.time()
    wait_for_inc(small, killed_s)
    assert time.time() - killed_s < 5
    wait_until(lambda: not state_of(arbiter, "z-large"))


def test_i7_a_job_with_a_partitioned_rank_runs_by_ring_until_it_returns(domain, start_job, opened):
    _, arbiter = domain
    proxy = Proxy(arbiter.target)
    opened.append(proxy)
    token = local_token(arbiter.port)  # the proxy has another port
    job = start_job(
        arbiter.target, "job", seconds=60, arbiters={1: proxy.target}, arbiter_token=token
    )
    wait_for_inc(job)
    proxy.cut()
    wait_until(lambda: job.rows()[-1][1] == "RING" and not job.inc_since(time.time() - 2), 40)
    assert time.time() - job.last_s() < 1
    proxy.is_cut = False
    wait_for_inc(job, time.time(), 40)
    job.check_no_number_is_split()


def test_two_jobs_of_one_name_the_second_one_runs_by_ring(domain, start_job, tmp_path, opened):
    _, arbiter = domain
    first = start_job(arbiter.target, "job", seconds=20)
    wait_for_inc(first)
    second = JobProcesses(tmp_path / "other", arbiter.target, "job", 2, seconds=3, token="other")
    opened.append(second)
    assert second.wait() == [0, 0]
    assert not any(second.ways().values())
    since_s = time.time()
    wait_for_inc(first, since_s)


def test_status_explain_and_time_line_of_the_command_line(domain, start_job, tmp_path):
    _, arbiter = domain
    job = start_job(arbiter.target, "resnet", seconds=30)
    wait_for_inc(job)
    wait_until(lambda: arbiter.status().jobs[0].counts.inc > 5)

    def run(*words):
        command = [sys.executable, "-m", "presage", "inc", *words, "--arbiter", arbiter.target]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = run("status")
    assert "resnet" in text and "2 of 2" in text and "(I2)" in text
    assert '"agreement": "in_band"' in run("status", "--json")
    assert "resnet, AllReduce" in run("explain", "resnet")
    for name in ("timeline.html", "timeline.svg"):
        out = tmp_path / name
        run("timeline", "--out", str(out))
        content = out.read_text()
        assert "<svg" in content and "switch tor" in content and "(I2)" in content
