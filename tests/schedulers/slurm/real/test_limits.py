"""Time limits in a real Slurm whose clock runs 40 times faster: when does a job end?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from presage.schedulers.slurm.bridge import bridge_process
from presage.schedulers.slurm.watch.slurm_job import Slurm
from presage.schedulers.slurm.watch.watcher import HEARTBEAT, Watcher, restore, touch_heartbeat
from tests.schedulers.slurm.site import GPU, needs_slurm, slurm_site
from tests.schedulers.slurm.test_bridge import FakeBackend
from tests.schedulers.slurm.test_decide import forecasts
from tests.support.waiting import stays_true

pytestmark = [
    needs_slurm,
    pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed"),
]

LEAD = 4  # minutes of the faster clock; slurmctld checks limits every half minute
SHORT = FakeBackend(forecasts(60))  # predicts a minute for all jobs


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    # By default slurmctld forgets an ended job after five minutes: 7.5 s here.
    settings = ("MinJobAge=100000",)
    with slurm_site(tmp_path_factory.mktemp("slurm"), speed=40, settings=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(site, monkeypatch):
    """Let the watcher in this process use the cluster and its clock."""
    for name, value in site.cluster.environment.items():
        monkeypatch.setenv(name, value)


@contextmanager
def watching(site):
    """Run a watcher in this process."""
    stopping = threading.Event()
    watcher = Watcher(Slurm(), site.state, None, cluster="test", lead_minutes=LEAD)
    thread = threading.Thread(target=watcher.run, args=(stopping, 0.2))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def minutes_of(site, job_id):
    """Return the run time of a job in minutes."""
    hours, minutes, seconds = site.cluster.job(job_id)["RunTime"].split(":")
    return int(hours) * 60 + int(minutes) + int(seconds) / 60


def test_no_job_ends_at_its_forecast(site):
    with site.bridge(SHORT, lead_minutes=LEAD), watching(site):
        job_ids = [site.submit(GPU, "--time=60", command=f"sleep {60 * m}") for m in (3, 7, 14)]
        jobs = [site.cluster.wait_for(job_id, "COMPLETED", "TIMEOUT") for job_id in job_ids]

    assert [job["JobState"] for job in jobs] == ["COMPLETED"] * 3
    assert [site.note(job_id).own_minutes for job_id in job_ids] == [60] * 3
    assert jobs[0]["TimeLimit"] in ("00:04:00", "00:09:00")  # the second if it was extended once
    assert minutes_of(site, job_ids[2]) > 13


def test_a_job_ends_at_its_users_own_limit(site):
    with site.bridge(SHORT, lead_minutes=LEAD), watching(site):
        job_id = site.submit(GPU, "--time=9", command="sleep 36000")
        job = site.cluster.wait_for(job_id, "COMPLETED", "TIMEOUT")

    assert (job["JobState"], job["TimeLimit"]) == ("TIMEOUT", "00:09:00")
    assert 9 <= minutes_of(site, job_id) < 11


def test_a_limit_that_was_changed_afterwards_is_kept(site):
    with site.bridge(SHORT, lead_minutes=LEAD), watching(site):
        job_id = site.submit(GPU, "--time=60", command="sleep 36000")
        site.cluster.wait_for(job_id, "RUNNING")
        site.cluster.run("scontrol", "update", f"JobId={job_id}", "TimeLimit=5")
        job = site.cluster.wait_for(job_id, "COMPLETED", "TIMEOUT")

    assert (job["JobState"], job["TimeLimit"]) == ("TIMEOUT", "00:05:00")


def test_each_task_of_an_array_is_extended_by_itself(site):
    with site.bridge(SHORT, lead_minutes=LEAD), watching(site):
        command = "[ $SLURM_ARRAY_TASK_ID = 1 ] || sleep 420"
        array = site.submit(GPU, "--time=60", "--array=0-2%2", command=command)
        rows = site.cluster.until(lambda: ended_tasks(site, array, 3), "three tasks")

    limits = {row.split("|")[0]: row.split("|")[2] for row in rows}
    assert {row.split("|")[1] for row in rows} == {"COMPLETED"}
    assert limits["1"] == "4:00"
    assert limits["0"] != "4:00"
    assert limits["2"] != "4:00"


def ended_tasks(site, array, count):
    text = site.cluster.run(
        "squeue", "--noheader", "--states=CD,TO,F", f"--jobs={array}", "--format=%K|%T|%l"
    )
    rows = text.split()
    return rows if len(rows) == count else None


def test_restoring_gives_the_users_own_limit_and_keeps_jobs_alive_without_a_watcher(site):
    with site.bridge(SHORT, lead_minutes=LEAD):
        running = site.submit(GPU, "--time=60", command="sleep 480")
        waiting = site.submit(GPU, "--time=60", "--begin=now+10hours", command="sleep 480")
        array = site.submit(GPU, "--time=60", "--begin=now+10hours", "--array=0-5%2")
    site.cluster.wait_for(running, "RUNNING")

    assert restore(Slurm()) == 3
    for job_id in (running, waiting, array):
        assert site.cluster.job(job_id)["TimeLimit"] == "01:00:00"
    assert site.cluster.wait_for(running, "COMPLETED", "TIMEOUT")["JobState"] == "COMPLETED"
    site.cluster.run("scancel", str(waiting), str(array))


def test_the_bridge_restores_limits_when_the_watcher_is_away(site, monkeypatch):
    monkeypatch.setattr(bridge_process, "_CHECK_S", 0.1)
    with site.bridge(SHORT, lead_minutes=LEAD):
        job_id = site.submit(GPU, "--time=60", command="sleep 480")
    stopping = threading.Event()
    thread = threading.Thread(target=bridge_process.supervise, args=(site.state, stopping))
    thread.start()
    try:
        touch_heartbeat(site.state)
        assert stays_true(
            lambda: site.cluster.job(job_id)["TimeLimit"] == "00:04:00", 0.5, pause_s=0.1
        )
        past_s = time.time() - bridge_process.RESTORE_AFTER_S
        os.utime(site.state / HEARTBEAT, (past_s, past_s))
        job = site.cluster.wait_for(job_id, "COMPLETED", "TIMEOUT")
    finally:
        stopping.set()
        thread.join()

    assert (job["JobState"], job["TimeLimit"]) == ("COMPLETED", "01:00:00")


def test_the_command_restores_limits_too(site):
    with site.bridge(SHORT, lead_minutes=LEAD):
        waiting = site.submit(GPU, "--time=60", "--begin=now+10hours")
    command = [sys.executable, "-m", "presage", "slurm", "restore"]
    kept = {"PATH": site.cluster.environment["PATH"]}
    environment = {**kept, "SLURM_CONF": site.cluster.environment["SLURM_CONF"]}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, timeout=60
    )

    assert done.stdout == "restored the limits of 1 job\n"
    assert site.cluster.job(waiting)["TimeLimit"] == "01:00:00"
    site.cluster.run("scancel", str(waiting))


def test_a_controller_that_was_away_longer_than_a_forecast_ends_no_job(site):
    with site.bridge(SHORT, lead_minutes=LEAD), watching(site):
        job_id = site.submit(GPU, "--time=60", command="sleep 900")
        site.cluster.wait_for(job_id, "RUNNING")
        time.sleep(2)  # until slurmctld has saved that the job runs
        site.cluster.kill("slurmctld")
        time.sleep(10)  # 6 minutes
        site.cluster.start("slurmctld")
        job = site.cluster.wait_for(job_id, "COMPLETED", "TIMEOUT")

    assert job["JobState"] == "COMPLETED"
