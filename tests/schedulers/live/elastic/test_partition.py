"""Tests of elastic jobs with a node that is cut off from the controller and the other node."""

from __future__ import annotations

import time

import pytest

from tests.schedulers.live.cluster import PRESAGE, until
from tests.schedulers.live.elastic.elastic_cluster import ElasticCluster
from tests.schedulers.live.faults.network import CONTROLLER
from tests.support.slow_tests import all_faults

LEASE_S = 12.0


@pytest.fixture
def cut_off(wire, tmp_path):
    """Cluster with node n0 behind the link, node n1 local, and a job on both."""
    cluster = ElasticCluster(tmp_path, lease_s=LEASE_S, host=CONTROLLER)
    try:
        cluster.controller()
        cluster.agent("n1")
        cluster.connected("n1")
        cluster.submit(cluster.elastic("wide", 100, (1, 3, 3), grace_s=2.0))
        cluster.trains("wide", 2)
        cluster.agent("n0", by=(*wire.by, *PRESAGE, "agent"))
        cluster.trains("wide", 3)
        cluster.advances("wide")
        yield cluster
    finally:
        cluster.close()


@all_faults
def test_nothing_is_lost_by_a_short_partition(cut_off, wire):
    workers = cut_off.workers("wide")
    for _ in range(2):
        wire.cut("controller", "agent")
        time.sleep(4.0)
        wire.heal()
        cut_off.advances("wide")

    cut_off.trains("wide", 3)
    assert cut_off.workers("wide") == workers
    assert cut_off.ends("wide") == 0
    assert cut_off.sizes("wide") == [2, 3, 0]


@all_faults
def test_others_continue_after_a_long_partition_and_the_node_returns(cut_off, wire):
    before = set(cut_off.workers("wide"))
    wire.cut("controller", "agent")

    cut_off.advances("wide")  # its connections are closed after 10 s
    until(lambda: "n0" in cut_off.client.explain("wide").status.sizes[-1].reason, 120)
    assert set(cut_off.trains("wide", 2).values()) == {"n1"}
    cut_off.advances("wide")
    wire.heal()
    cut_off.connected("n0", "n1")

    assert set(cut_off.trains("wide", 3)) - before == {"m4"}
    assert cut_off.ends("wide") <= 1
    assert cut_off.status("wide").attempt == 1
