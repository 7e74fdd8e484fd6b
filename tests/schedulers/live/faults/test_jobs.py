"""Tests of jobs that ignore signals or write without end."""

from __future__ import annotations

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import LiveCluster, until
from tests.schedulers.live.job import processes_of
from tests.support.slow_tests import all_faults

LOG_BYTES = 64 * 2**20


@pytest.mark.parametrize("hows", [("deaf", "forks"), pytest.param(("polite",), marks=all_faults)])
def test_a_cancelled_job_leaves_no_processes(cluster, hows):
    nodes = [f"n{i}" for i in range(len(hows))]
    cluster.up(*nodes)
    cluster.submit(*(cluster.job(how, 10_000, 0.05, 0, how, grace_s=1.0) for how in hows))
    for how in hows:
        cluster.runs(how)

    cluster.cancel(*hows)

    assert cluster.over(*hows) == dict.fromkeys(hows, pb.CANCELLED)
    cluster.check(run_once=hows)


@all_faults
def test_evicted_jobs_continue_on_another_node(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("deaf", 60, 0.05, 5, "deaf", grace_s=1.0))
    cluster.runs("deaf", beyond=10)
    evict(cluster)
    assert cluster.runs("deaf", attempt=2).number > 10
    cluster.cancel("deaf")
    cluster.submit(cluster.job("polite", 20, 0.05, 0, "polite"))
    cluster.runs("polite", beyond=3)
    evict(cluster)

    # It exited with 0, but not all of its work is done.
    cluster.over("deaf", "polite")
    assert cluster.phases()["polite"] == pb.FINISHED
    assert [line.attempt for line in cluster.starts("polite")] == [1, 2]
    cluster.check()


def test_a_job_that_finishes_during_its_eviction_is_not_rerun(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("done", 10_000, 0.05, 0, "done"))
    cluster.runs("done")

    evict(cluster)

    assert cluster.over("done") == {"done": pb.FINISHED}
    cluster.check(run_once=["done"])


@all_faults
def test_endless_output_of_a_job_fills_no_disk(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("writes", 400, 0.005, 0, "writes"))
    cluster.runs("writes", beyond=300)
    logs = list((cluster.folder / "n0" / "tasks").glob("*/log*"))

    assert sum(path.stat().st_size for path in logs) < 4 * LOG_BYTES
    assert cluster.over("writes") == {"writes": pb.FINISHED}
    cluster.check(run_once=["writes"])


def evict(cluster: LiveCluster) -> None:
    """Evict the jobs of node n0, and undo the drain."""
    cluster.drain("n0", evict=True)
    until(lambda: not processes_of(str(cluster.ledger)))
    cluster.drain("n0", undo=True)
