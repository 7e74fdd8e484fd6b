"""Tests of elastic jobs that are cancelled, preempted or moved away from a drained node."""

from __future__ import annotations

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import until
from tests.support.slow_tests import all_faults


@all_faults
def test_a_cancelled_job_leaves_no_process_and_frees_its_devices(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 100, (1, 3, 3)))
    elastic.trains("wide", 3)

    elastic.cancel("wide")

    assert elastic.over("wide") == {"wide": pb.CANCELLED}
    elastic.is_gone()
    assert elastic.sizes("wide") == [3, 0]


@all_faults
def test_a_job_leaves_a_drained_node_and_returns_to_it(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (1, 4, 4)))
    nodes = elastic.trains("wide", 4)

    elastic.drain("n1", evict=True)
    left = elastic.trains("wide", 2)
    assert left == {name: node for name, node in nodes.items() if node == "n0"}
    elastic.advances("wide")
    elastic.drain("n1", undo=True)
    elastic.trains("wide", 4)

    assert elastic.ends("wide") == 0
    assert elastic.sizes("wide") == [4, 2, 4, 0]
    reasons = [change.reason for change in elastic.client.explain("wide").status.sizes]
    assert reasons[1] == "node n1 is drained"


@all_faults
def test_a_job_below_its_minimum_waits_until_a_drained_node_returns(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (3, 4, 4)))
    elastic.trains("wide", 4)
    elastic.advances("wide", 10)

    elastic.drain("n1", evict=True)
    until(lambda: elastic.status("wide").phase == pb.WAITING, what="it waits")
    until(lambda: not elastic.workers("wide"))
    assert "node n1 is drained" in elastic.status("wide").reason
    elastic.drain("n1", undo=True)
    elastic.trains("wide", 4, attempt=2)

    assert elastic.ends("wide") == 0  # its last step was saved


@all_faults
def test_a_preempted_job_continues_from_its_last_step(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (3, 4, 4)))
    elastic.trains("wide", 4)
    elastic.advances("wide", 10)

    elastic.submit(elastic.job("rigid", 20, 0.1, gpus=2, priority=5))
    elastic.runs("rigid")
    assert elastic.status("wide").phase in (pb.LEAVING, pb.WAITING)
    elastic.over("rigid")
    elastic.trains("wide", 4, attempt=2)

    assert elastic.ends("wide") == 0  # its last step was saved
    assert elastic.status("wide").attempt == 2


@all_faults
def test_a_job_that_is_cancelled_while_it_grows_leaves_no_process(elastic):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 100, (1, 4, 4)))
    elastic.trains("wide", 2)
    elastic.agent("n1")
    until(lambda: len(elastic.status("wide").members) == 4)

    elastic.cancel("wide")

    assert elastic.over("wide") == {"wide": pb.CANCELLED}
    elastic.is_gone()


@all_faults
def test_a_job_that_finishes_while_a_worker_starts_ends_at_once(elastic):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
    elastic.trains("wide", 2)
    elastic.agent("n1")
    until(lambda: len(elastic.status("wide").members) == 3, what="m3 starts")
    elastic.hurry()
    until(lambda: elastic.status("wide").phase == pb.FINISHED, 50, "without waiting for m3")

    assert elastic.ends("wide") == 0
