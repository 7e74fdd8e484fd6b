"""Tests of splitting content that exceeds a message into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.live.protocol.pieces import merge_commands, split_commands, submit_requests
from presage.schedulers.live.protocol.wire import MAX_JOB_BYTES, MAX_JOBS, MAX_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb

SIZES = st.lists(st.integers(0, 60_000), max_size=60)
LEAST_BYTES = 128 * 1024


def orders_of(sizes):
    tasks = [
        pb.TaskCommand(attempt=n, job=pb.Job(job_id=str(n), folder="x" * size))
        for n, size in enumerate(sizes)
    ]
    return pb.NodeCommands(
        report_number=3, version=7, tasks=tasks, lease_s=9.0, cluster_id="c",
        forget=[pb.TaskName(job_id="gone", attempt=1)],
    )  # fmt: skip


@given(SIZES)
def test_chunks_of_commands_are_small_and_merge_to_the_original(sizes):
    orders, whole = orders_of(sizes), None
    for piece in split_commands(orders, LEAST_BYTES):
        assert piece.ByteSize() <= LEAST_BYTES
        assert whole is None or whole.has_more
        whole = merge_commands(whole, pb.NodeCommands.FromString(piece.SerializeToString()))
    assert whole == orders


def test_small_commands_are_one_message():
    assert [piece.has_more for piece in split_commands(orders_of([10] * 10))] == [False]


@pytest.mark.parametrize("count", [0, 1, MAX_JOBS, MAX_JOBS + 1, 3 * MAX_JOBS])
def test_many_jobs_are_several_requests(count):
    jobs = [pb.Job(job_id=str(number)) for number in range(count)]
    requests = list(submit_requests(jobs))

    assert [job for request in requests for job in request.jobs] == jobs
    assert all(len(request.jobs) <= MAX_JOBS for request in requests)
    assert len(requests) == max(1, -(-count // MAX_JOBS))


def test_large_jobs_are_several_requests_that_each_fit():
    jobs = [pb.Job(job_id=str(n), folder="x" * (MAX_JOB_BYTES - 100)) for n in range(10)]
    requests = list(submit_requests(jobs))

    assert [job.job_id for request in requests for job in request.jobs] == [j.job_id for j in jobs]
    assert max(request.ByteSize() for request in requests) <= MAX_MESSAGE_BYTES
    assert len(requests) == 4


def test_the_report_of_a_full_node_fits_in_one_message():
    name = "\U0001f680" * 128
    task = pb.Task(
        job_id=name, attempt=2**31 - 1, phase=pb.TASK_ENDED, done=0.5, saved=0.5,
        usage_milli=1.0, memory_bytes=2**60, peak_memory_bytes=2**60, ran_s=1e9, remaining_s=1e9,
        reason="x" * 1024, exit=pb.Exit(description="x" * 1024),
        allocations=[pb.Allocation(device=1023, compute_milli=1000, memory_bytes=2**60)] * 10,
    )  # fmt: skip
    report = pb.NodeReport(
        node=name, agent_id="a" * 64, tasks=[task] * 1024, problem="x" * 1024,
        devices=[pb.Device(kind="k" * 128, memory_bytes=2**60)] * 1024,
    )  # fmt: skip

    assert report.ByteSize() < MAX_MESSAGE_BYTES
