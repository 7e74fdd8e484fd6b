"""`presage cluster on-ray` on two real Ray nodes of this host, with a processor each."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import ENVIRONMENT, PRESAGE, until
from tests.schedulers.live.job import processes_of
from tests.schedulers.ray.ray_cluster import LEASE_S, RayCluster
from tests.schedulers.ray.ray_nodes import ray_nodes
from tests.support.ray_driver import LOCK

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install presage[ray]"
)
# From the end of the lease until a job that saves a checkpoint at once is gone, on a busy machine.
SAVED_S = 10.0
REMOVE = """
import sys, ray
from ray._raylet import PlacementGroupID
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
ray.init(address=sys.argv[1], log_to_driver=False)
for name, row in placement_group_table().items():
    if row["state"] == "CREATED":
        remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(name)))
"""


@pytest.fixture(scope="module")
def lock():
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def shared_nodes(lock):
    with ray_nodes(2, ENVIRONMENT) as nodes:
        yield nodes


@pytest.fixture
def cluster(shared_nodes, tmp_path):
    running = RayCluster(tmp_path, shared_nodes)
    yield running
    running.close()


def running_jobs(cluster):
    """Start a job on each node, and return the names of the nodes."""
    names = cluster.ready()
    cluster.submit(cluster.job("a", 10_000, 0.05, 10), cluster.job("b", 10_000, 0.05, 10))
    cluster.runs("a")
    cluster.runs("b")
    return names


def test_jobs_run_on_all_nodes_and_the_agents_hold_their_processors(cluster):
    assert {name.rpartition("-")[2] for name in cluster.ready()} == {
        node[:8] for node in cluster.nodes.node_ids
    }
    cluster.submit(cluster.job("a", 20), cluster.job("b", 20))

    assert cluster.over("a", "b") == {"a": pb.FINISHED, "b": pb.FINISHED}
    assert {cluster.status(job).node for job in ("a", "b")} == set(cluster.ready())
    cluster.check(run_once=["a", "b"])
    devices = {node.name: [one.kind for one in node.devices] for node in cluster.all().nodes}
    assert list(devices.values()) == [["cpu-1"], ["cpu-1"]]


def test_nodes_that_another_cluster_holds_are_not_granted_twice(cluster, tmp_path):
    cluster.ready()
    options = ["--address", cluster.nodes.address, "--state", tmp_path / "other", "--grant-s", 2]
    second = cluster.start("second", [*PRESAGE, "on-ray", *options])

    assert second.wait(60.0) == 1
    said = cluster.log("second").read_text().splitlines()[-1]
    assert "Ray has not granted 2 nodes with up to 1 CPU within 2 s" in said


def test_a_driver_that_ends_takes_controller_and_agents_with_it_and_jobs_end_with_their_lease(
    cluster,
):
    running_jobs(cluster)

    assert cluster.kill("driver", signal.SIGTERM) == 0

    until(lambda: not cluster.processes(), LEASE_S)
    until(cluster.is_gone, LEASE_S + SAVED_S)
    assert not [line for line in cluster.lines() if line.what == "beside"]


def test_all_processes_of_a_killed_driver_are_gone_within_the_lease(cluster):
    running_jobs(cluster)
    began_s = time.monotonic()

    cluster.kill("driver")

    until(cluster.is_gone, LEASE_S + SAVED_S)
    assert time.monotonic() - began_s < LEASE_S + SAVED_S
    assert not [line for line in cluster.lines() if line.what == "beside"]


def test_the_end_of_the_placement_group_ends_the_cluster(cluster):
    running_jobs(cluster)

    subprocess.run(
        [sys.executable, "-c", REMOVE, cluster.nodes.address], check=True, capture_output=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip

    assert cluster.running.pop("driver").wait(60.0) == 1
    assert "the placement group was removed" in cluster.said()
    until(cluster.is_gone, LEASE_S + SAVED_S)


def test_jobs_of_an_actor_that_is_killed_continue_under_the_agent_of_the_next_one(cluster):
    names = running_jobs(cluster)
    pids = {job: set(processes_of(str(cluster.ledger), job)) for job in ("a", "b")}
    agents = cluster.processes("cluster agent")

    for agent in agents:  # the parent of an agent is its actor
        cluster.signal(parent_of(agent), signal.SIGKILL)

    until(lambda: not set(agents) & set(cluster.processes("cluster agent")), 30.0)
    until(lambda: len(cluster.processes("cluster agent")) == 2, 60.0, what=cluster.said)
    assert cluster.ready() == names
    done = {job: cluster.lines()[-1].number for job in ("a", "b")}
    for job, number in done.items():
        cluster.runs(job, beyond=number)
    assert {job: set(processes_of(str(cluster.ledger), job)) for job in ("a", "b")} == pids
    cluster.cancel("a", "b")
    cluster.over("a", "b")
    cluster.check(run_once=["a", "b"])


def test_a_job_of_a_lost_node_continues_on_another_one_and_a_new_node_joins(lock, tmp_path):
    with ray_nodes(2, ENVIRONMENT) as nodes:
        cluster = RayCluster(tmp_path, nodes)
        try:
            names = cluster.ready()
            cluster.submit(cluster.job("a", 400, 0.05, 10), cluster.job("b", 400, 0.05, 10))
            cluster.runs("a")
            cluster.runs("b")
            lost = next(name for name in names if name.endswith(nodes.node_ids[1][:8]))
            moved = next(job for job in ("a", "b") if cluster.status(job).node == lost)

            nodes.kill(1)

            assert cluster.over("a", "b") == {"a": pb.FINISHED, "b": pb.FINISHED}
            cluster.check()  # no two processes of a job at once, and no saved work was repeated
            assert len(cluster.starts(moved)) == 2
            assert cluster.starts(moved)[1].number >= 10
            assert f"lost {lost}" in cluster.said()
            nodes.add()
            new = nodes.node_ids[2][:8]
            until(lambda: new in "".join(one for one in cluster.ready()), 120.0, cluster.said)
        finally:
            cluster.close()


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
