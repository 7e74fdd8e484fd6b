"""Tests of elastic jobs that share a device: requirement S4 with controller, agent and workers."""

from __future__ import annotations

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import LiveCluster, until

SHARING = "tests.schedulers.live.elastic.policies.sharing:Sharing"
GIB = 2**30
ALL, HALF = (1000, 2 * GIB), (500, GIB)


def share_of(elastic, name):
    """Return compute and memory of the only worker of a job."""
    (member,) = elastic.status(name).members
    return member.allocation.compute_milli, member.allocation.memory_bytes


def has_share(elastic, name, share, file_bytes):
    """Wait until a job has a share, and its worker's file says so."""
    until(lambda: share_of(elastic, name) == share, what=f"{name} has {share}")

    def written():
        files = (elastic.folder / "n0").glob(f"tasks/*/elastic/{name}/memory_bytes")
        return [path.read_text() for path in files] == [str(file_bytes)]

    until(written, what=f"the worker of {name} may use {file_bytes} bytes")


def test_s4_two_jobs_share_a_device_and_one_gets_all_of_it_back_when_the_other_ends(elastic):
    elastic.policy = SHARING
    elastic.controller()
    LiveCluster.agent(elastic, "n0")  # with one device
    elastic.connected("n0")
    elastic.submit(elastic.elastic("a", 200, (1, 1, 2), sample_s=0.02))
    elastic.trains("a", 1)
    has_share(elastic, "a", ALL, 0)

    elastic.submit(elastic.elastic("b", 8, (1, 1, 2), sample_s=0.02))
    elastic.trains("b", 1)
    has_share(elastic, "a", HALF, GIB)
    has_share(elastic, "b", HALF, GIB)
    elastic.advances("a")
    assert elastic.over("b")["b"] == pb.FINISHED
    has_share(elastic, "a", ALL, 0)
    elastic.advances("a")

    assert elastic.ends("a") == 0
    assert elastic.ends("b") == 0
    assert elastic.status("a").attempt == elastic.status("b").attempt == 1
    assert elastic.sizes("a") == [1, 0]
    history = [event.details for event in elastic.client.explain("a").history]
    assert any(
        "its shares of devices are reduced, which it shares with b" in one for one in history
    )
    assert any("its shares of devices are raised" in one for one in history)
