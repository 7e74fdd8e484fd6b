"""Tests of the sizes of elastic jobs: they grow on idle devices, and shrink for other jobs."""

from __future__ import annotations

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.support.slow_tests import all_faults


def test_a_job_grows_shrinks_for_another_job_and_grows_again(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 20, (2, 4, 4)))
    nodes = elastic.trains("wide", 4)
    assert sorted(nodes.values()) == ["n0", "n0", "n1", "n1"]

    elastic.submit(elastic.job("rigid", 10, 0.05, gpus=2))
    assert elastic.over("rigid")["rigid"] == pb.FINISHED
    elastic.trains("wide", 4)

    assert elastic.ends("wide") == 0
    assert elastic.phases() == {"wide": pb.FINISHED, "rigid": pb.FINISHED}
    assert elastic.status("wide").attempt == 1
    assert elastic.sizes("wide") == [4, 2, 4, 0]


@all_faults
def test_the_elastic_policy_changes_sizes_and_explains_them(elastic):
    elastic.policy = "elastic:hold_s=1"
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 60, (1, 2, 2)))
    elastic.trains("wide", 2)

    elastic.submit(elastic.job("rigid", 20, 0.1, priority=1))
    elastic.runs("rigid")
    elastic.trains("wide", 1)
    assert elastic.over("rigid")["rigid"] == pb.FINISHED
    elastic.trains("wide", 2)

    assert elastic.ends("wide") == 0
    assert elastic.status("wide").attempt == 1
    assert elastic.sizes("wide") == [2, 1, 2, 0]
    explanation = elastic.client.explain("wide")
    reasons = [change.reason for change in explanation.status.sizes]
    assert reasons[0].startswith("it starts on 2 of at most 2 devices")
    assert reasons[1].startswith("it shrinks from 2 to 1 for rigid")
    assert reasons[2].startswith("it grows from 1 to 2, since devices are idle")
    history = [event.details for event in explanation.history]
    assert all(any(reason in line for line in history) for reason in reasons[:3])
