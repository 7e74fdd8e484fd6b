"""Devices of a node as its actor sees them, with a stand-in for Ray's context and the driver."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from presage.errors import ConfigError
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.ray import node_actor
from presage.schedulers.ray.node_actor import NodeActor, agent_folder
from presage.schedulers.ray.node_bundles import NodeBundle
from tests.schedulers.clusters import GIB

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install presage[ray]")
GPUS = tuple(Slot("h100", 80 * GIB, cuda=number) for number in range(2))


@pytest.fixture(autouse=True)
def context(monkeypatch):
    found = SimpleNamespace(get_node_id=lambda: "c5f5bb13bae1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: found)
    monkeypatch.setattr("socket.gethostname", lambda: "node a#1.cluster")
    monkeypatch.setattr(node_actor, "detected_gpus", lambda _: GPUS)


def test_a_node_is_named_after_its_host_and_rays_node():
    node = NodeActor(NodeBundle(8, 2), None).node()

    assert (node.name, node.devices) == ("node-a-1.cluster-c5f5bb13", {"h100": 2})


def test_processors_are_one_device_of_as_many_as_ray_grants_and_the_process_may_use():
    usable = len(os.sched_getaffinity(0))

    assert NodeActor(NodeBundle(1, 0), None).node().devices == {"cpu-1": 1}
    assert NodeActor(NodeBundle(4096, 0), None).node().devices == {f"cpu-{usable}": 1}


def test_fewer_gpus_than_ray_granted_are_an_error_that_names_the_node():
    with pytest.raises(ConfigError, match=r"node-a-1.*: Ray granted 4 GPUs, .* shows 2 of them"):
        NodeActor(NodeBundle(8, 4), None).node()


def test_agents_of_two_clusters_have_folders_of_their_own():
    assert agent_folder("a1", "n0") != agent_folder("b2", "n0") != agent_folder("b2", "n1")
