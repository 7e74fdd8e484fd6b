"""The gate: requirement A6, and A2 to A5 where kube-scheduler binds."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.schedulers.kubernetes.names import DEVICES, GATE, PLAN, RESERVED, ROLLED_BACK
from presage.schedulers.policies.gang import Gang
from tests.schedulers.kubernetes.gated import gated
from tests.schedulers.kubernetes.manifests import node, pod


def annotations(cluster, name, plural="podgroups"):
    found = cluster.server.get(plural, name)
    assert found is not None
    return found["metadata"].get("annotations") or {}


def released(cluster, name):
    """How many of a gang's pods kube-scheduler may bind, or has bound."""
    return sum(not one["spec"].get("schedulingGates") for one in cluster.of(name))


def test_a6_a_gang_is_planned_whole_and_kube_scheduler_binds_it_where_it_was_planned():
    with gated(node("n0", gpus=2), node("n1", gpus=4), node("n2", gpus=4)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=3, nodeName="n1"))
        names = cluster.gang("train", 4)
        assert cluster.scheduler.step() == []  # nobody of a gated gang is bound
        cluster.write()
        assert cluster.where("train") == []  # the gate binds nobody
        for name, device in zip(names, ("n2/0", "n2/1", "n2/2", "n2/3"), strict=True):
            assert annotations(cluster, name, "pods")[DEVICES] == device
        cluster.settle()
        assert cluster.where("train") == ["n2"] * 4
        assert cluster.events("Planned") == ["4 pods: n2/0, n2/1, n2/2, n2/3"]
        assert cluster.step().writes == []


def test_a4_what_a_node_cannot_take_for_any_reason_is_planned_elsewhere():
    taint = {"key": "maintenance", "value": "", "effect": "NoSchedule"}
    nodes = [
        node("cordoned", unschedulable=True), node("tainted", taints=[taint]),
        node("few-cpus", cpus=3), node("other-zone", labels={"zone": "b"}),
        node("x0", gpus=4, labels={"zone": "a"}), node("x1", gpus=4, labels={"zone": "a"}),
    ]  # fmt: skip
    with gated(*nodes) as cluster:
        cluster.gang("train", 8, nodeSelector={"zone": "a"}, cpus="2")
        cluster.gang("cpus", 4, cpus="2", tolerations=[{"operator": "Exists"}])
        cluster.settle()
        assert cluster.where("train") == ["x0"] * 4 + ["x1"] * 4
        assert len(set(cluster.where("cpus"))) == 1
        assert cluster.where("cpus")[0] not in ("few-cpus", "x0", "x1")


def test_pods_of_several_devices_and_pods_of_none_are_one_gang():
    with gated(node("n0"), node("n1", gpus=4), node("n2")) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.gang("wide", 2, gpus=4)
        cluster.settle()
        assert cluster.where("wide") == ["n2", "n2"]  # one node can hold it
        cluster.gang("over", 2, gpus=4)
        cluster.settle()
        assert cluster.where("over") == ["n0", "n1"] or cluster.where("over") == []


def test_a2_a3_gangs_are_served_by_priority_and_age_and_a_pod_of_none_is_its_own():
    with gated(node("n0", gpus=2)) as cluster:
        cluster.server.create("priorityclasses", {"metadata": {"name": "high"}, "value": 9})
        cluster.gang("first", 2)
        cluster.later(1)
        cluster.gang("second", 1)
        cluster.later(1)
        cluster.gang("urgent", 1, priorityClassName="high")
        (alone,) = cluster.jobs.owned("alone", [pod("", gpus=1, gates=[GATE])])
        cluster.settle()
        assert cluster.where("urgent") == ["n0"]
        assert cluster.where("first") == []
        # The first waits for both devices: what is left is kept for it.
        assert "n0/" in annotations(cluster, "first")[RESERVED]
        for one in cluster.of("urgent"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.where("first") == ["n0", "n0"]
        for one in cluster.of("first"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.where("second") == ["n0"]
        assert cluster.server.get("pods", alone)["spec"]["nodeName"] == "n0"


def test_a5_what_a_gang_keeps_is_given_back_when_it_expires_and_it_waits_its_turn():
    with gated(node("n0", gpus=2), policy=Gang(expiry_s=100.0, backoff_s=50.0)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.gang("train", 2)
        cluster.settle()
        assert '"devices":"n0/1"' in annotations(cluster, "train")[RESERVED]
        again_s = cluster.step().again_s
        assert again_s == cluster.now_s + 100.0
        cluster.later(100.0)
        cluster.write(1)
        assert RESERVED not in annotations(cluster, "train")
        assert '"times":1' in annotations(cluster, "train")[ROLLED_BACK]
        assert cluster.step().again_s == cluster.now_s + 50.0
        cluster.later(50.0)
        cluster.settle()
        assert cluster.step().again_s == cluster.now_s + 200.0  # twice as long


def test_a5_a_gang_that_is_not_bound_in_time_is_taken_back_whole_and_planned_anew():
    with gated(node("n0", gpus=4), node("n1", gpus=4)) as cluster:
        cluster.gang("train", 4, scheduleTimeoutSeconds=60)
        cluster.write()
        assert released(cluster, "train") == 4
        # Another scheduler was faster on one of the devices.
        where = cluster.of("train")[0]["spec"]["affinity"]["nodeAffinity"]
        (term,) = where["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (taken,) = term["matchFields"][0]["values"]
        cluster.server.create("pods", pod("thief", gpus=1, nodeName=taken))
        cluster.settle()
        assert len(cluster.where("train")) == 3
        cluster.later(60.0)
        cluster.settle()
        assert "3 of 4 pods were bound within 60 s" in cluster.events("TakenBack")[0]
        cluster.later(60.0)
        cluster.settle()
        other = {"n0": "n1", "n1": "n0"}[taken]
        assert cluster.where("train") == [other] * 4


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_gate_that_dies_between_any_two_writes_goes_on_where_it_was(writes):
    with gated(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.gang("train", 4)
        cluster.gang("next", 2)
        cluster.write(writes)
        # Never is a pod free without a plan for enough of its gang.
        assert released(cluster, "train") == 0 or PLAN in annotations(cluster, "train")
        cluster.restart()
        cluster.settle()
        assert cluster.where("train") == ["n0", "n0", "n1", "n1"]
        for one in cluster.of("train"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.restart()
        cluster.settle()
        assert cluster.where("next") in (["n0", "n0"], ["n1", "n1"])
