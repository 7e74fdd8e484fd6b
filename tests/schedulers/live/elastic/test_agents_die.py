"""Tests of killed agents and lost nodes under an elastic job."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from presage.schedulers.live.agent.tasks.processes import environment, pids
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import until
from tests.schedulers.live.elastic.elastic_cluster import ElasticCluster
from tests.support.slow_tests import all_faults

LEASE_S = 3.0


@pytest.fixture
def elastic(tmp_path):
    cluster = ElasticCluster(tmp_path, lease_s=LEASE_S)
    yield cluster
    cluster.close()


def lose(cluster: ElasticCluster, node: str) -> None:
    """Kill all processes of a node."""
    cluster.kill(node)
    state = os.fsencode(cluster.folder / node)
    for pid in pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            is_shim = b"tasks.shim import" in words and state in words
            if is_shim or environment(pid).get(b"PRESAGE_STATE", b"").startswith(state):
                cluster.signal(pid, signal.SIGKILL)


@all_faults
def test_a_new_agent_adopts_the_workers_of_a_killed_one(tmp_path):
    elastic = ElasticCluster(tmp_path)
    try:
        elastic.up("n0", "n1")
        elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
        nodes = elastic.trains("wide", 3)
        workers = elastic.workers("wide")

        for node in ("n0", "n1"):
            elastic.kill(node)
            elastic.advances("wide")
            elastic.agent(node)
        elastic.connected("n0", "n1")

        elastic.advances("wide")
        assert elastic.trains("wide", 3) == nodes
        assert elastic.workers("wide") == workers
        assert elastic.ends("wide") == 0
        assert elastic.sizes("wide") == [3, 0]
    finally:
        elastic.close()


@all_faults
@pytest.mark.parametrize("when", ["resized", "started"])
def test_an_agent_killed_in_the_middle_of_a_growth_completes_it(tmp_path, when):
    elastic = ElasticCluster(tmp_path)
    try:
        elastic.up("n0")
        elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
        nodes = elastic.trains("wide", 2)
        workers = elastic.workers("wide")
        elastic.agent("n1")
        until(lambda: elastic.leader_status("wide").get("desired") == 3)
        if when == "started":
            until(lambda: elastic.workers("wide").keys() == {*workers, "m3"})

        elastic.kill("n1")
        elastic.advances("wide")
        elastic.agent("n1")

        assert elastic.trains("wide", 3) == nodes | {"m3": "n1"}
        assert workers.items() <= elastic.workers("wide").items()
        assert elastic.ends("wide") == 0
        assert elastic.sizes("wide") == [2, 3, 0]
        assert elastic.status("wide").attempt == 1
    finally:
        elastic.close()


@all_faults
def test_an_agent_killed_while_a_worker_leaves_gives_its_device_to_another_job(tmp_path):
    elastic = ElasticCluster(tmp_path)
    try:
        elastic.up("n0", "n1")
        elastic.submit(elastic.elastic("wide", 20, (3, 4, 4), sample_s=1.0))
        nodes = elastic.trains("wide", 4)

        elastic.submit(elastic.job("rigid", 10, 0.05))
        until(lambda: elastic.leader_status("wide").get("desired") == 3)
        leaving = until(
            lambda: [one.name for one in elastic.status("wide").members if one.state == "leaving"]
        )
        victim = nodes[leaving[0]]
        elastic.kill(victim)
        elastic.agent(victim)

        assert elastic.over("rigid")["rigid"] == pb.FINISHED
        elastic.trains("wide", 4)
        assert elastic.ends("wide") == 0
        assert elastic.sizes("wide") == [4, 3, 4, 0]
        assert elastic.status("wide").attempt == 1
    finally:
        elastic.close()


@all_faults
def test_the_workers_of_other_nodes_continue_when_a_node_is_lost(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (1, 4, 4), grace_s=1.0))
    nodes = elastic.trains("wide", 4)
    elastic.advances("wide")

    lose(elastic, "n1")
    elastic.advances("wide")

    left = elastic.trains("wide", 2)
    assert left == {name: node for name, node in nodes.items() if node == "n0"}
    last = elastic.client.explain("wide").status.sizes[-1]
    assert "node n1 has not reported" in last.reason
    elastic.agent("n1")
    elastic.trains("wide", 4)
    assert elastic.ends("wide") <= 1
    assert elastic.status("wide").attempt == 1


@all_faults
def test_a_job_below_its_minimum_is_saved_and_continues_later(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (3, 4, 4), grace_s=1.0))
    elastic.trains("wide", 4)
    elastic.advances("wide", 10)

    lose(elastic, "n1")
    until(lambda: elastic.status("wide").phase == pb.WAITING, what="it waits")
    until(lambda: not elastic.workers("wide"))
    summary = elastic.client.explain("wide").summary
    assert "needs 3 devices, and the cluster has 2 for it" in summary
    until(lambda: not elastic.leader_pids(), what="no leader is left")

    elastic.agent("n1")
    elastic.trains("wide", 4, attempt=2)
    assert elastic.ends("wide") <= 1
    first = min(row.step for row in elastic.rows("wide") if row.attempt == 2)
    last = max(row.step for row in elastic.rows("wide") if row.attempt == 1)
    assert first >= last  # one step may have been on the lost node only
