"""Faults of ranks, switch, network and arbiter: no rank hangs, and all have the same results."""

from __future__ import annotations

import signal
import time

import pytest

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from tests.collectives.torch.switches import Gate, HalfSwitch
from tests.support.slow_tests import all_faults

SIZE = 50_000
LARGE = 1_000_000


def is_step(number):
    return lambda line: line.get("step", -1) >= number


def assert_equal_results(results):
    assert len({result["digest"] for result in results}) == 1


@pytest.fixture
def job_on_switch(start_switch, start_arbiter, start_job):
    """Start a job whose AllReduces all go to a switch, and wait until they do."""

    def start(scenario="timed", ranks=2, window=20_000, switch_options=None, **options):
        switch = start_switch(**(switch_options or {}))
        arbiter = start_arbiter(ranks)
        arbiter.use_switch(switch)
        arbiter.allow(window=window)
        options = {"size": SIZE, "use_switch": True, **options}
        job = start_job(scenario, ranks, arbiter, options)
        for rank in range(ranks):
            job.wait_for(rank, lambda line: "ready" in line)
        return job, switch, arbiter

    return start


def test_i4_a_rank_killed_during_an_allreduce_on_the_switch_is_an_error_of_the_others(
    job_on_switch,
):
    job, _, _ = job_on_switch(ranks=3, steps=10_000)
    job.wait_for(0, is_step(5))

    job.signal(2, signal.SIGSTOP)  # the others wait for it at the switch
    time.sleep(0.5)
    job.signal(2, signal.SIGKILL)

    begin_s = time.monotonic()
    for rank in (0, 1):
        assert job.processes[rank].wait(20) == 1
        assert "rank 2 closed its connection" in job.errors(rank)
    assert time.monotonic() - begin_s < 15


def test_i4_a_slow_rank_is_waited_for(job_on_switch):
    job, _, _ = job_on_switch(steps=60, pause_s=0.02)
    job.wait_for(0, is_step(5))

    job.signal(1, signal.SIGSTOP)
    time.sleep(1)
    job.signal(1, signal.SIGCONT)
    results = job.results()

    assert_equal_results(results)
    assert results[0]["longest_s"] > 0.5
    assert results[0]["summed"] == 60


def test_i4_a_switch_that_dies_and_returns_costs_no_result(job_on_switch, ending):
    job, switch, _ = job_on_switch("sums", size=LARGE, steps=150, compare=True, pause_s=0.02)
    job.wait_for(0, is_step(10))

    switch.process.send_signal(signal.SIGSTOP)  # in mid-chunk
    time.sleep(0.1)
    switch.close()
    job.wait_for(0, is_step(30))
    ending.append(SwitchProcess(SwitchOptions(port=switch.port)))
    results = job.results()

    assert_equal_results(results)
    assert all(result["worst"] < 1e-5 for result in results)
    assert 1 <= results[0]["failed"] < 140
    assert results[0]["summed"] > 20
    assert results[0]["summed"] == results[1]["summed"]


@all_faults
@pytest.mark.parametrize("size", [SIZE // 2, LARGE])  # the first fits into buffers of the system
def test_i4_a_frozen_switch_holds_one_allreduce_for_ten_seconds(job_on_switch, size):
    job, switch, _ = job_on_switch(steps=60, size=size, pause_s=0.02)
    job.wait_for(0, is_step(10))

    switch.process.send_signal(signal.SIGSTOP)
    results = job.results()
    switch.process.send_signal(signal.SIGCONT)

    assert_equal_results(results)
    assert all(5 < result["longest_s"] < 11 for result in results)
    assert results[0]["failed"] == results[1]["failed"] > 20


@pytest.mark.parametrize("lucky", [0, 1])
def test_i4_a_sum_that_only_one_rank_received_is_given_to_the_other(
    start_arbiter, start_job, ending, lucky
):
    switch = HalfSwitch(sent_to=lucky)
    ending.append(switch)
    arbiter = start_arbiter()
    arbiter.use_switch(switch)
    arbiter.allow()
    options = {"size": SIZE, "steps": 150, "pause_s": 0.01, "compare": True}

    results = start_job("sums", 2, arbiter, options).results()

    assert switch.done == 1
    assert_equal_results(results)
    assert all(result["worst"] < 1e-5 for result in results)
    assert [result["summed"] for result in results] == [1, 1]


def test_i4_a_sum_is_given_to_a_peer_although_the_next_number_runs_by_ring(
    start_arbiter, start_job, ending
):
    switch = HalfSwitch(pause_s=0.3)  # rank 0 has started the next ring by then
    ending.append(switch)
    arbiter = start_arbiter()
    arbiter.use_switch(switch)
    arbiter.allow(lambda number: number % 16 == 5)
    options = {"size": SIZE, "steps": 120, "pause_s": 0.01, "timeout_s": 6}

    results = start_job("sums", 2, arbiter, options).results()

    assert switch.done == 1
    assert_equal_results(results)
    assert [result["summed"] for result in results] == [1, 1]


@pytest.mark.parametrize("holds_requests", [True, False])
def test_i4_a_rank_that_is_cut_off_from_the_switch_only_takes_all_to_the_ring(
    start_switch, start_arbiter, start_job, ending, holds_requests
):
    switch = start_switch(lease_ms=1000)
    gate = Gate(switch, holds_requests)
    ending.append(gate)
    arbiter = start_arbiter()
    arbiter.use_switch(switch)
    arbiter.use_switch(switch, rank=1, port=gate.port)
    arbiter.allow()
    options = {"size": SIZE, "use_switch": True, "steps": 100, "pause_s": 0.02}
    job = start_job("timed", 2, arbiter, options)
    job.wait_for(0, is_step(5))

    gate.is_open.clear()
    results = job.results()

    assert_equal_results(results)
    # A sum that was on its way to the rank costs the time-out of a link that makes no progress.
    assert all(result["longest_s"] < 11 for result in results)
    assert results[0]["failed"] > 10
    assert results[0]["summed"] == results[1]["summed"] >= 5
    gate.is_open.set()


def test_i4_an_arbiter_that_is_never_there_leaves_the_job_on_the_ring(start_arbiter, start_job):
    arbiter = start_arbiter()
    arbiter.close()

    results = start_job("timed", 2, arbiter, {"size": SIZE, "steps": 40}).results()

    assert_equal_results(results)
    assert results[0]["summed"] == results[0]["failed"] == 0


def test_i6_an_arbiter_that_dies_leaves_the_agreed_view_until_its_window_ends(job_on_switch):
    window = 400
    job, _, arbiter = job_on_switch(steps=700, window=window, pause_s=0.001)

    arbiter.close()
    results = job.results()

    assert_equal_results(results)
    assert results[0]["failed"] == 0
    assert 100 < results[0]["summed"] < window
    assert results[0]["summed_at"][-1] == results[0]["summed_at"][-100]  # the ring at the end


def test_i6_a_revocation_and_a_grant_reach_all_ranks_at_the_same_allreduce(job_on_switch):
    job, _, arbiter = job_on_switch(steps=400, pause_s=0.002)
    job.wait_for(0, is_step(50))
    arbiter.allow(lambda number: False)
    job.wait_for(0, is_step(150))
    arbiter.allow(lambda number: number % 2 == 0)

    results = job.results()

    assert_equal_results(results)
    assert results[0]["failed"] == results[1]["failed"] == 0
    assert results[0]["summed_at"] == results[1]["summed_at"]
    assert 60 < results[0]["summed"] < 390


def test_i4_a_cancelled_job_leaves_its_slot_to_another_one(job_on_switch, start_arbiter, start_job):
    job, switch, _ = job_on_switch(steps=10_000)
    job.wait_for(0, is_step(5))
    for rank in range(2):
        job.signal(rank, signal.SIGTERM)
    for process in job.processes:
        process.wait(10)
    arbiter = start_arbiter()
    arbiter.job = "other"
    arbiter.use_switch(switch)
    arbiter.allow()

    options = {"size": SIZE, "steps": 5, "use_switch": True}
    other = start_job("timed", 2, arbiter, options, {"PRESAGE_INC_JOB": "other"})

    assert all(result["summed"] == 5 for result in other.results())
