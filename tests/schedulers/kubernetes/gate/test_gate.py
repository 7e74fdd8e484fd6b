"""The gate: requirements A2 to A6, with kube-scheduler binding the pods."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.gate.annotations import Plan
from presage.schedulers.kubernetes.gate.gate_loop import run_gate
from presage.schedulers.kubernetes.gate.writer import Writer
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_DEADLINE,
    DEVICES,
    GATE,
    JOB_FEATURES,
    PLAN,
    POD_GROUP_LABEL,
    RESERVATION,
    ROLLBACKS,
)
from presage.schedulers.kubernetes.pods import (
    bound_node,
    has_succeeded,
    is_finished,
    is_terminating,
)
from presage.schedulers.kubernetes.snapshot import Snapshot
from presage.schedulers.policies.gang.gang_policy import Gang
from tests.schedulers.kubernetes.gated import gated_cluster
from tests.schedulers.kubernetes.kube_scheduler.json_http import HttpError
from tests.schedulers.kubernetes.manifests import node, node_affinity, pod, pod_group
from tests.support.waiting import wait_until


def annotations_of(cluster, name, plural="podgroups"):
    found = cluster.server.get(plural, name)
    assert found is not None
    return found["metadata"].get("annotations") or {}


def plan_of(cluster, name):
    plan = Plan.from_json(annotations_of(cluster, name)[PLAN])
    assert plan is not None
    return plan


def released_count(cluster, name):
    """Return the number of a gang's pods without a gate."""
    return sum(not one["spec"].get("schedulingGates") for one in cluster.gang_pods(name))


def test_a6_kube_scheduler_binds_a_gang_to_its_planned_nodes():
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=4), node("n2", gpus=4)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=3, nodeName="n1"))
        names = cluster.create_gang("train", 4)
        assert cluster.scheduler.step() == []  # no gated pod is bound
        cluster.write()
        assert cluster.bound_nodes("train") == []  # the gate binds no pods
        planned = [annotations_of(cluster, name, "pods")[DEVICES] for name in sorted(names)]
        assert sorted(planned) == ["n2/0", "n2/1", "n2/2", "n2/3"]
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n2"] * 4
        assert cluster.events("Planned") == ["4 pods: n2/0, n2/1, n2/2, n2/3"]
        assert cluster.step().writes == []


def test_a4_plans_avoid_nodes_that_kube_scheduler_would_reject():
    taint = {"key": "maintenance", "value": "", "effect": "NoSchedule"}
    nodes = [
        node("cordoned", unschedulable=True), node("tainted", taints=[taint]),
        node("few-cpus", cpus=3), node("other-zone", labels={"zone": "b"}),
        node("x0", gpus=4, labels={"zone": "a"}), node("x1", gpus=4, labels={"zone": "a"}),
    ]  # fmt: skip
    with gated_cluster(*nodes) as cluster:
        cluster.create_gang("train", 8, nodeSelector={"zone": "a"}, cpus="2")
        cluster.create_gang("cpus", 4, cpus="2", tolerations=[{"operator": "Exists"}])
        cluster.settle()
        assert cluster.bound_nodes("train") == ["x0"] * 4 + ["x1"] * 4
        assert len(set(cluster.bound_nodes("cpus"))) == 1
        assert cluster.bound_nodes("cpus")[0] not in ("few-cpus", "x0", "x1")


def test_a4_pod_level_requests_override_container_requests():
    with gated_cluster(node("n0", cpus=4), node("n1", cpus=8)) as cluster:
        cluster.create_gang("train", 2, cpus="1", resources={"requests": {"cpu": "3"}})
        cluster.write()
        planned = plan_of(cluster, "train").devices.values()
        assert {device.partition("/")[0] for device in planned} == {"n1"}


def test_gangs_of_multi_device_pods_are_placed_on_few_nodes():
    with gated_cluster(node("n0"), node("n1", gpus=4), node("n2")) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.create_gang("wide", 2, gpus=4)
        cluster.settle()
        assert cluster.bound_nodes("wide") == ["n2", "n2"]  # one node can hold it
        cluster.create_gang("over", 2, gpus=4)
        cluster.settle()
        assert cluster.bound_nodes("over") == ["n0", "n1"] or cluster.bound_nodes("over") == []


def test_a2_a3_gangs_and_single_pods_are_planned_by_priority_and_age():
    with gated_cluster(node("n0", gpus=2)) as cluster:
        cluster.server.create("priorityclasses", {"metadata": {"name": "high"}, "value": 9})
        cluster.create_gang("first", 2)
        cluster.advance(1)
        cluster.create_gang("second", 1)
        cluster.advance(1)
        cluster.create_gang("urgent", 1, priorityClassName="high")
        (single,) = cluster.jobs.create_pods("single", [pod("", gpus=1, gates=[GATE])])
        cluster.settle()
        assert cluster.bound_nodes("urgent") == ["n0"]
        assert cluster.bound_nodes("first") == []
        # The first gang waits for both devices: the free one is reserved for it.
        assert "n0/" in annotations_of(cluster, "first")[RESERVATION]
        for one in cluster.gang_pods("urgent"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.bound_nodes("first") == ["n0", "n0"]
        for one in cluster.gang_pods("first"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.bound_nodes("second") == ["n0"]
        assert [one["spec"].get("nodeName") for one in cluster.server.all("pods")
                if one["metadata"]["name"] == single] == ["n0"]  # fmt: skip


def test_a5_an_expired_reservation_is_rolled_back_with_a_backoff():
    with gated_cluster(node("n0", gpus=2), policy=Gang(expiry_s=100.0, backoff_s=50.0)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.create_gang("train", 2)
        cluster.settle()
        assert '"devices":"n0/1"' in annotations_of(cluster, "train")[RESERVATION]
        next_pass_s = cluster.step().next_pass_s
        assert next_pass_s == cluster.now_s + 100.0
        cluster.advance(100.0)
        cluster.write(1)
        assert RESERVATION not in annotations_of(cluster, "train")
        assert '"count":1' in annotations_of(cluster, "train")[ROLLBACKS]
        assert cluster.step().next_pass_s == cluster.now_s + 50.0
        cluster.advance(50.0)
        cluster.settle()
        assert cluster.step().next_pass_s == cluster.now_s + 200.0  # twice as long


def test_a5_a_gang_that_is_not_bound_in_time_is_rolled_back_and_planned_again():
    with gated_cluster(node("n0", gpus=4), node("n1", gpus=4)) as cluster:
        cluster.create_gang("train", 4, scheduleTimeoutSeconds=60)
        cluster.write()
        assert released_count(cluster, "train") == 4
        # Another scheduler takes one of the devices.
        where = cluster.gang_pods("train")[0]["spec"]["affinity"]["nodeAffinity"]
        (term,) = where["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (taken,) = term["matchFields"][0]["values"]
        cluster.server.create("pods", pod("intruder", gpus=1, nodeName=taken))
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 3
        cluster.advance(60.0)
        cluster.settle()
        assert "3 of 4 pods were bound within 60 s" in cluster.events("PlanRolledBack")[0]
        cluster.advance(60.0)
        cluster.settle()
        other = {"n0": "n1", "n1": "n0"}[taken]
        assert cluster.bound_nodes("train") == [other] * 4


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_gate_restarted_between_any_two_writes_continues(writes):
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.create_gang("train", 4)
        cluster.advance(1)
        cluster.create_gang("next", 2)
        cluster.write(writes)
        # No pod is ungated without a plan for its gang.
        assert released_count(cluster, "train") == 0 or PLAN in annotations_of(cluster, "train")
        cluster.restart()
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n0", "n0", "n1", "n1"]
        for one in cluster.gang_pods("train"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.restart()
        cluster.settle()
        assert cluster.bound_nodes("next") in (["n0", "n0"], ["n1", "n1"])


def test_a_failed_member_is_replaced_within_the_schedule_timeout():
    with gated_cluster(node("n0", gpus=3)) as cluster:
        cluster.create_gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        assert plan_of(cluster, "train").bind_deadline_s is None
        cluster.server.set_phase(cluster.gang_pods("train")[0]["metadata"]["name"], "Failed")
        cluster.write()
        assert plan_of(cluster, "train").bind_deadline_s == cluster.now_s + 60
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 4  # three running pods, and the failed one
        assert plan_of(cluster, "train").bind_deadline_s is None


def test_a_gang_that_loses_its_quorum_is_rolled_back():
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.create_gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        cluster.server.delete("nodes", "n1")
        for one in cluster.gang_pods("train"):
            if one["spec"]["nodeName"] == "n1":
                cluster.server.delete("pods", one["metadata"]["name"])
        cluster.settle()
        cluster.advance(60.0)
        cluster.settle()
        assert cluster.bound_nodes("train") == []
        assert released_count(cluster, "train") == 0
        cluster.server.create("nodes", node("n2", gpus=8))
        cluster.advance(60.0)  # the back-off
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n2"] * 3


def test_a_plan_on_a_deleted_node_is_rolled_back_at_once():
    with gated_cluster(node("n0", gpus=4), node("n1", gpus=4)) as cluster:
        cluster.create_gang("train", 4, scheduleTimeoutSeconds=3600)
        cluster.write(1)
        planned = next(iter(plan_of(cluster, "train").devices.values()))
        cluster.server.delete("nodes", planned.partition("/")[0])
        cluster.settle()
        assert "planned nodes do not exist any more" in cluster.events("PlanRolledBack")[0]
        cluster.advance(60.0)
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 4


def test_pods_beyond_the_quorum_start_when_they_fit():
    with gated_cluster(node("n0", gpus=4)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.create_gang("train", 4, min_member=2)
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 3
        cluster.server.set_phase("busy", "Succeeded")
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"owner": False}, "has no controller to recreate it"),
        ({"group": False}, "PodGroup 'train' does not exist in namespace 'default'; create it"),
        ({"pods": 2}, "fewer gated pods than minMember 3 requires"),
        ({"sizes": (1, 2, 2)}, "its pods request 1 and 2 devices"),
        ({"sizes": (4, 4, 4)}, "the gang needs 12 devices, and the cluster has 8 for it"),
        ({"sizes": (9, 9, 9)}, "no node fits one of its pods, even without other pods"),
    ],
)
def test_a_gang_that_cannot_be_planned_gets_an_event_with_the_reason(options, reason):
    with gated_cluster(node("n0")) as cluster:
        if options.get("group", True):
            cluster.server.create("podgroups", pod_group("train", 3))
        sizes = options.get("sizes", (1,) * options.get("pods", 3))
        labels = {POD_GROUP_LABEL: "train"}
        pods = [
            pod(f"p{i}", gpus=size, gates=[GATE], labels=labels) for i, size in enumerate(sizes)
        ]
        if options.get("owner", True):
            cluster.jobs.create_pods("train", pods)
        else:
            for one in pods:
                cluster.server.create("pods", one)
        cluster.settle()
        cluster.settle()
        (message,) = cluster.events("FailedScheduling")  # once
        assert reason in message
        assert cluster.bound_nodes("train") == []


def test_pods_with_other_gates_are_not_planned():
    with gated_cluster(node("n0")) as cluster:
        names = cluster.create_gang("train", 2, gates=["another.example/quota", GATE])
        cluster.settle()
        assert cluster.bound_nodes("train") == []
        for name in names:
            cluster.server.change("pods", name, {"spec": {"schedulingGates": [{"name": GATE}]}})
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n0", "n0"]


def test_pods_without_devices_are_released_to_any_node():
    with gated_cluster(node("n0"), node("c0", gpus=0, labels={"pool": "cpu"})) as cluster:
        cluster.create_gang("plain", 2, gpus=0)
        assert cluster.write(50) < 50
        cluster.settle()
        assert len(cluster.bound_nodes("plain")) == 2
        labels = {POD_GROUP_LABEL: "mpi"}
        launcher = pod("", gates=[GATE], labels=labels, nodeSelector={"pool": "cpu"})
        worker = pod("", gpus=4, gates=[GATE], labels=labels)
        cluster.server.create("podgroups", pod_group("mpi", 3))
        cluster.jobs.create_pods("mpi", [launcher, worker, worker])
        cluster.settle()
        assert cluster.bound_nodes("mpi") == ["c0", "n0", "n0"]


DEEP, LONG = "[" * 90_000, "9" * 5_000


@pytest.mark.parametrize(
    ("on_group", "on_pods"),
    [
        ({PLAN: DEEP, RESERVATION: DEEP, ROLLBACKS: DEEP, JOB_FEATURES: DEEP}, {}),
        ({RESERVATION: f'{{"devices":"n0/{LONG}","until":"2040-01-01T00:00:00Z"}}'}, {}),
        ({RESERVATION: '{"devices":"n0/0,n0/0,x/9","until":"2040-01-01T00:00:00Z"}'}, {}),
        ({ROLLBACKS: '{"count":3,"last":"2040-01-01T00:00:00Z"}'}, {}),  # the clock was set back
        ({}, {DEVICES: f"n0/{LONG}", BIND_DEADLINE: "soon", JOB_FEATURES: DEEP}),
        (
            {},
            {DEVICES: "n0/0", BIND_DEADLINE: "2025-01-01T00:00:00Z"},
        ),  # of a copied pod
        ({}, {"batch.kubernetes.io/job-completion-index": LONG}),
    ],
)
def test_invalid_annotations_do_not_prevent_planning(on_group, on_pods):
    with gated_cluster(node("n0", gpus=2)) as cluster:
        cluster.create_gang("train", 2, group_annotations=on_group, annotations=on_pods)
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n0", "n0"]


def test_pods_that_were_never_gated_are_ignored():
    with gated_cluster(node("n0", gpus=2)) as cluster:
        cluster.create_gang(
            "train", 1, gates=[], annotations={BIND_DEADLINE: "soon"}, nodeSelector={"no": "x"}
        )
        cluster.create_gang("other", 1)
        cluster.settle()
        assert cluster.bound_nodes("other") == ["n0"]


def test_a_pod_group_without_spec_or_with_an_invalid_timeout_is_planned():
    with gated_cluster(node("n0", gpus=3)) as cluster:
        empty = pod_group("empty", 1)
        del empty["spec"]
        cluster.server.create("podgroups", empty)
        labels = {POD_GROUP_LABEL: "empty"}
        cluster.jobs.create_pods("empty", [pod("", gpus=1, gates=[GATE], labels=labels)])
        cluster.create_gang("train", 2, scheduleTimeoutSeconds=-1)
        cluster.settle()
        assert cluster.bound_nodes("empty") == ["n0"]
        assert cluster.bound_nodes("train") == ["n0", "n0"]
        groups = [one for one in cluster.server.all("events") if one["reason"] == "Planned"]
        assert {one["involvedObject"]["kind"] for one in groups} == {"PodGroup"}


def test_steps_do_not_depend_on_the_order_of_objects():
    with gated_cluster(node("n0"), node("n1")) as cluster:
        for name in ("a", "b", "c"):
            cluster.create_gang(name, 2, gpus=0)
            cluster.create_gang(f"wide-{name}", 9, gpus=2)
        snapshot = cluster.snapshot()
        reversed_snapshot = Snapshot(
            snapshot.version,
            dict(list(snapshot.nodes.items())[::-1]),
            dict(list(snapshot.pods.items())[::-1]),
            dict(list(snapshot.pod_groups.items())[::-1]),
        )
        assert cluster.gate.step(reversed_snapshot, cluster.now_s) == cluster.step()


def test_an_empty_affinity_term_stays_empty():
    named = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    with gated_cluster(node("n0")) as cluster:
        cluster.create_gang("train", 2, affinity=node_affinity({"matchExpressions": [named]}, {}))
        assert cluster.write(50) < 50
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n0", "n0"]


def test_all_members_planned_on_a_deleted_node_count_as_lost():
    with gated_cluster(node("n0", gpus=3), node("n1", gpus=2)) as cluster:
        cluster.create_gang("train", 5, 4, scheduleTimeoutSeconds=3600)
        cluster.write(1)
        cluster.server.delete("nodes", "n0")
        cluster.settle()
        assert "planned nodes do not exist any more: n0" in cluster.events("PlanRolledBack")[0]


@pytest.mark.parametrize("annotation", [None, Plan().to_json()])
def test_a_gang_with_a_modified_plan_is_rolled_back_without_a_quorum(annotation):
    with gated_cluster(node("n0", gpus=4)) as cluster:
        cluster.create_gang("train", 4, scheduleTimeoutSeconds=60)
        cluster.write()
        cluster.server.create("pods", pod("intruder", gpus=1, nodeName="n0"))
        cluster.server.change(
            "podgroups", "train", {"metadata": {"annotations": {PLAN: annotation}}}
        )
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 3
        cluster.advance(60.0)
        cluster.settle()
        assert cluster.bound_nodes("train") == []
        assert released_count(cluster, "train") == 0


def test_a_copy_of_a_released_pod_is_not_deleted():
    with gated_cluster(node("n0")) as cluster:
        (name,) = cluster.jobs.create_pods("single", [pod("", gpus=1, gates=[GATE])])
        cluster.write()
        annotations = annotations_of(cluster, name, "pods")
        assert annotations[DEVICES] == "n0/0"
        cluster.server.create(
            "pods", pod("copy", annotations=annotations, nodeSelector={"no": "x"})
        )
        cluster.advance(3600.0)
        cluster.settle()
        assert cluster.server.get("pods", "copy") is not None


def test_a_gang_whose_writes_fail_does_not_block_others():
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.create_gang("bad", 2)
        cluster.advance(1)
        cluster.create_gang("worse", 1)
        cluster.advance(1)
        cluster.create_gang("good", 2)
        cluster.server.fail_requests("PATCH", "pods/bad", 500, times=10_000)  # an admission webhook
        cluster.server.fail_requests("PATCH", "podgroups/worse", 403, times=10_000)
        stopping = threading.Event()
        with Cache(cluster.server.client(retries=False)) as cache:
            writer = Writer(cluster.server.client(retries=False), cache.put)
            gate = threading.Thread(
                target=run_gate, args=(cluster.gate, cache, writer, stopping),
                kwargs={"clock": lambda: cluster.now_s},
            )  # fmt: skip
            gate.start()
            try:
                wait_until(lambda: released_count(cluster, "good") >= 2, 30)
            finally:
                stopping.set()
                gate.join()
        assert released_count(cluster, "bad") == released_count(cluster, "worse") == 0
        planned = [plan_of(cluster, name).devices.values() for name in ("bad", "good")]
        assert len({device for devices in planned for device in devices}) == 4
        writes = [one for one in cluster.server.requests if one.method == "PATCH"]
        assert len(writes) < 50


def test_a_gang_that_fits_on_an_empty_node_waits_for_one():
    with gated_cluster(
        node("n0", gpus=4), node("n1", gpus=4), node("small", gpus=4, cpus=2)
    ) as cluster:
        for name in ("n0", "n1"):
            cluster.server.create("pods", pod(f"busy-{name}", gpus=2, nodeName=name))
        cluster.create_gang("train", 4)
        cluster.settle()
        assert cluster.bound_nodes("train") == []  # small has CPUs for two of them, full or empty
        cluster.server.set_phase("busy-n1", "Succeeded")
        cluster.settle()
        assert cluster.bound_nodes("train") == ["n1"] * 4


def test_succeeded_members_count_for_the_quorum_after_their_deletion():
    with gated_cluster(node("n0", gpus=4)) as cluster:
        cluster.create_gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        first, second, third = (one["metadata"]["name"] for one in cluster.gang_pods("train"))
        cluster.server.set_phase(first, "Succeeded")
        cluster.settle()
        cluster.server.delete("pods", first)
        cluster.settle()
        cluster.advance(61.0)
        cluster.settle()
        assert len(cluster.bound_nodes("train")) == 2
        cluster.server.set_phase(second, "Failed")  # and its controller recreates it
        cluster.settle()
        cluster.advance(61.0)
        cluster.settle()
        assert (
            sum(
                bool(bound_node(one)) and not is_finished(one) for one in cluster.gang_pods("train")
            )
            == 2
        )
        # Another run under the same PodGroup starts from scratch.
        for one in cluster.gang_pods("train"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert PLAN not in annotations_of(cluster, "train")
        labels = {POD_GROUP_LABEL: "train"}
        cluster.server.create("pods", pod("taken", gpus=2, nodeName="n0"))
        cluster.jobs.create_pods("again", [pod("", gpus=1, gates=[GATE], labels=labels)] * 3)
        cluster.settle()
        assert (
            sum(
                bool(bound_node(one)) and not is_finished(one) for one in cluster.gang_pods("train")
            )
            == 0
        )
        assert third


def inject_fault(cluster, rng):
    """Inject a random fault or change."""
    server = cluster.server
    pods = [
        one
        for one in server.all("pods")
        if bound_node(one) and not is_finished(one) and not is_terminating(one)
    ]
    fault = rng.randrange(10)
    if fault == 0:
        cluster.restart()
    elif fault == 1:
        with suppress(HttpError):
            cluster.scheduler.step()
    elif fault == 2:
        cluster.jobs.step()
    elif fault == 3 and pods:
        phase = rng.choice(["Running", "Failed", "Succeeded"])
        server.set_phase(rng.choice(pods)["metadata"]["name"], phase)
    elif fault == 4 and pods:
        one = rng.choice(pods)["metadata"]
        server.delete("pods", one["name"])
        if server.get("pods", one["name"]) is not None:
            server.finish(one["name"])
    elif fault == 5:
        name = f"n{rng.randrange(4)}"
        if server.get("nodes", name) is None:
            server.create("nodes", node(name, gpus=rng.randint(1, 4)))
        else:
            server.delete("nodes", name)
    elif fault == 6:
        free = [one["metadata"]["name"] for one in server.all("nodes")]
        intruder = pod(f"intruder{rng.getrandbits(40)}", gpus=1)
        if free:
            intruder["spec"]["nodeName"] = rng.choice(free)
        server.create("pods", intruder)
    elif fault == 7:
        server.drop("PATCH", ".", rng.choice(["before", "after"]))
    elif fault == 8:
        server.fail_requests("PATCH", ".", rng.choice([409, 500]))
    else:
        cluster.advance(rng.choice([1.0, 10.0, 70.0]))


def check_gangs(cluster):
    """Assert for every gang, between two writes, that no pod is ungated without a plan."""
    for group in cluster.server.all("podgroups"):
        name, min_member = group["metadata"]["name"], group["spec"]["minMember"]
        plan = Plan.from_json(annotations_of(cluster, name).get(PLAN, ""))
        live = [
            one
            for one in cluster.gang_pods(name)
            if not is_finished(one) and not is_terminating(one)
        ]
        free = [one["metadata"]["uid"] for one in live if not one["spec"].get("schedulingGates")]
        assert not free or plan is not None
        yield name, min_member, plan, free


@pytest.mark.parametrize("seed", range(8))
def test_law_a_gang_runs_with_a_quorum_or_not_at_all(seed):
    rng = random.Random(seed)
    nodes = node("n0", gpus=4), node("n1", gpus=3), node("n2", gpus=2)
    with gated_cluster(*nodes, policy=Gang(near="cluster")) as cluster:
        for i in range(4):
            pods = rng.randint(1, 5)
            cluster.create_gang(f"g{i}", pods, rng.randint(1, pods), scheduleTimeoutSeconds=30)
            cluster.advance(1)
        for _ in range(60):
            with suppress(ApiException, HTTPError):
                cluster.write(rng.randint(0, 4))
            list(check_gangs(cluster))
            inject_fault(cluster, rng)
        cluster.server.clear_faults()
        for one in cluster.server.all("pods"):
            if one["metadata"]["name"].startswith("intruder"):
                cluster.server.delete("pods", one["metadata"]["name"])
                if cluster.server.get("pods", one["metadata"]["name"]) is not None:
                    cluster.server.finish(one["metadata"]["name"])
        for name in ("x0", "x1"):
            cluster.server.create("nodes", node(name, gpus=16))
        for _ in range(8):
            cluster.settle()
            cluster.advance(700.0)
        cluster.settle()
        for name, min_member, plan, _ in check_gangs(cluster):
            members = cluster.gang_pods(name)
            done = sum(map(has_succeeded, members))
            bound = sum(bool(bound_node(one)) and not is_finished(one) for one in members)
            assert done + bound >= min_member, (name, plan)
            assert RESERVATION not in annotations_of(cluster, name)
