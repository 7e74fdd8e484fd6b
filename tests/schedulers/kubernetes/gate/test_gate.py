"""The gate: requirement A6, and A2 to A5 where kube-scheduler binds."""

from __future__ import annotations

import random
import threading
import time
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
from presage.schedulers.policies.gang.policy import Gang
from tests.schedulers.kubernetes.gated import gated
from tests.schedulers.kubernetes.kube_scheduler.json_http import HttpError
from tests.schedulers.kubernetes.manifests import node, node_affinity, pod, pod_group


def noted(cluster, name, plural="podgroups"):
    found = cluster.server.get(plural, name)
    assert found is not None
    return found["metadata"].get("annotations") or {}


def plan_of(cluster, name):
    plan = Plan.from_json(noted(cluster, name)[PLAN])
    assert plan is not None
    return plan


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
        planned = [noted(cluster, name, "pods")[DEVICES] for name in sorted(names)]
        assert sorted(planned) == ["n2/0", "n2/1", "n2/2", "n2/3"]
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


def test_a4_what_a_pod_asks_for_as_a_whole_counts_instead_of_what_its_containers_do():
    with gated(node("n0", cpus=4), node("n1", cpus=8)) as cluster:
        cluster.gang("train", 2, cpus="1", resources={"requests": {"cpu": "3"}})
        cluster.write()
        planned = plan_of(cluster, "train").devices.values()
        assert {device.partition("/")[0] for device in planned} == {"n1"}


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
        assert "n0/" in noted(cluster, "first")[RESERVATION]
        for one in cluster.of("urgent"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.where("first") == ["n0", "n0"]
        for one in cluster.of("first"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert cluster.where("second") == ["n0"]
        assert [one["spec"].get("nodeName") for one in cluster.server.all("pods")
                if one["metadata"]["name"] == alone] == ["n0"]  # fmt: skip


def test_a5_what_a_gang_keeps_is_given_back_when_it_expires_and_it_waits_its_turn():
    with gated(node("n0", gpus=2), policy=Gang(expiry_s=100.0, backoff_s=50.0)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.gang("train", 2)
        cluster.settle()
        assert '"devices":"n0/1"' in noted(cluster, "train")[RESERVATION]
        next_pass_s = cluster.step().next_pass_s
        assert next_pass_s == cluster.now_s + 100.0
        cluster.later(100.0)
        cluster.write(1)
        assert RESERVATION not in noted(cluster, "train")
        assert '"count":1' in noted(cluster, "train")[ROLLBACKS]
        assert cluster.step().next_pass_s == cluster.now_s + 50.0
        cluster.later(50.0)
        cluster.settle()
        assert cluster.step().next_pass_s == cluster.now_s + 200.0  # twice as long


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
        assert "3 of 4 pods were bound within 60 s" in cluster.events("PlanRolledBack")[0]
        cluster.later(60.0)
        cluster.settle()
        other = {"n0": "n1", "n1": "n0"}[taken]
        assert cluster.where("train") == [other] * 4


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_gate_that_dies_between_any_two_writes_goes_on_where_it_was(writes):
    with gated(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.gang("train", 4)
        cluster.later(1)
        cluster.gang("next", 2)
        cluster.write(writes)
        # Never is a pod free without a plan for enough of its gang.
        assert released(cluster, "train") == 0 or PLAN in noted(cluster, "train")
        cluster.restart()
        cluster.settle()
        assert cluster.where("train") == ["n0", "n0", "n1", "n1"]
        for one in cluster.of("train"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.restart()
        cluster.settle()
        assert cluster.where("next") in (["n0", "n0"], ["n1", "n1"])


def test_a_member_that_fails_is_replaced_and_until_then_its_gang_has_time():
    with gated(node("n0", gpus=3)) as cluster:
        cluster.gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        assert plan_of(cluster, "train").bind_deadline_s is None
        cluster.server.set_phase(cluster.of("train")[0]["metadata"]["name"], "Failed")
        cluster.write()
        assert plan_of(cluster, "train").bind_deadline_s == cluster.now_s + 60
        cluster.settle()
        assert len(cluster.where("train")) == 4  # three that live, and the one that failed
        assert plan_of(cluster, "train").bind_deadline_s is None


def test_a_gang_that_is_whole_no_longer_gives_everything_back():
    with gated(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        cluster.server.delete("nodes", "n1")
        for one in cluster.of("train"):
            if one["spec"]["nodeName"] == "n1":
                cluster.server.delete("pods", one["metadata"]["name"])
        cluster.settle()
        cluster.later(60.0)
        cluster.settle()
        assert cluster.where("train") == []
        assert released(cluster, "train") == 0
        cluster.server.create("nodes", node("n2", gpus=8))
        cluster.later(60.0)  # the back-off
        cluster.settle()
        assert cluster.where("train") == ["n2"] * 3


def test_a_plan_on_a_node_that_is_gone_is_taken_back_at_once():
    with gated(node("n0", gpus=4), node("n1", gpus=4)) as cluster:
        cluster.gang("train", 4, scheduleTimeoutSeconds=3600)
        cluster.write(1)
        planned = next(iter(plan_of(cluster, "train").devices.values()))
        cluster.server.delete("nodes", planned.partition("/")[0])
        cluster.settle()
        assert "planned nodes do not exist any more" in cluster.events("PlanRolledBack")[0]
        cluster.later(60.0)
        cluster.settle()
        assert len(cluster.where("train")) == 4


def test_more_than_a_quorum_start_if_they_fit_and_the_others_when_they_do():
    with gated(node("n0", gpus=4)) as cluster:
        cluster.server.create("pods", pod("busy", gpus=1, nodeName="n0"))
        cluster.gang("train", 4, min_member=2)
        cluster.settle()
        assert len(cluster.where("train")) == 3
        cluster.server.set_phase("busy", "Succeeded")
        cluster.settle()
        assert len(cluster.where("train")) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"owner": False}, "has no controller to recreate it"),
        ({"group": False}, "PodGroup 'train' does not exist in namespace 'default'; create it"),
        ({"pods": 2}, "fewer gated pods than minMember 3 requires"),
        ({"sizes": (1, 2, 2)}, "its pods request 1 and 2 devices"),
        ({"sizes": (4, 4, 4)}, "a gang of 12, and there are 8 devices for it"),
        ({"sizes": (9, 9, 9)}, "no node fits one of its pods, even without other pods"),
    ],
)
def test_what_cannot_be_planned_is_told_with_the_reason(options, said):
    with gated(node("n0")) as cluster:
        if options.get("group", True):
            cluster.server.create("podgroups", pod_group("train", 3))
        sizes = options.get("sizes", (1,) * options.get("pods", 3))
        labels = {POD_GROUP_LABEL: "train"}
        pods = [
            pod(f"p{i}", gpus=size, gates=[GATE], labels=labels) for i, size in enumerate(sizes)
        ]
        if options.get("owner", True):
            cluster.jobs.owned("train", pods)
        else:
            for one in pods:
                cluster.server.create("pods", one)
        cluster.settle()
        cluster.settle()
        (message,) = cluster.events("FailedScheduling")  # once
        assert said in message
        assert cluster.where("train") == []


def test_other_gates_are_waited_for():
    with gated(node("n0")) as cluster:
        names = cluster.gang("train", 2, gates=["another.example/quota", GATE])
        cluster.settle()
        assert cluster.where("train") == []
        for name in names:
            cluster.server.change("pods", name, {"spec": {"schedulingGates": [{"name": GATE}]}})
        cluster.settle()
        assert cluster.where("train") == ["n0", "n0"]


def test_a_gang_that_needs_no_devices_is_released_and_one_of_both_kinds_goes_where_each_can():
    with gated(node("n0"), node("c0", gpus=0, labels={"pool": "cpu"})) as cluster:
        cluster.gang("plain", 2, gpus=0)
        assert cluster.write(50) < 50
        cluster.settle()
        assert len(cluster.where("plain")) == 2
        labels = {POD_GROUP_LABEL: "mpi"}
        launcher = pod("", gates=[GATE], labels=labels, nodeSelector={"pool": "cpu"})
        worker = pod("", gpus=4, gates=[GATE], labels=labels)
        cluster.server.create("podgroups", pod_group("mpi", 3))
        cluster.jobs.owned("mpi", [launcher, worker, worker])
        cluster.settle()
        assert cluster.where("mpi") == ["c0", "n0", "n0"]


DEEP, LONG = "[" * 90_000, "9" * 5_000


@pytest.mark.parametrize(
    ("on_group", "on_pods"),
    [
        ({PLAN: DEEP, RESERVATION: DEEP, ROLLBACKS: DEEP, JOB_FEATURES: DEEP}, {}),
        ({RESERVATION: f'{{"devices":"n0/{LONG}","until":"2040-01-01T00:00:00Z"}}'}, {}),
        ({RESERVATION: '{"devices":"n0/0,n0/0,x/9","until":"2040-01-01T00:00:00Z"}'}, {}),
        ({ROLLBACKS: '{"count":3,"last":"2040-01-01T00:00:00Z"}'}, {}),  # the clock was set back
        ({}, {DEVICES: f"n0/{LONG}", BIND_DEADLINE: "soon", JOB_FEATURES: DEEP}),
        ({}, {DEVICES: "n0/0", BIND_DEADLINE: "2025-01-01T00:00:00Z"}),  # of a pod that was copied
        ({}, {"batch.kubernetes.io/job-completion-index": LONG}),
    ],
)
def test_whatever_annotations_say_gangs_are_planned(on_group, on_pods):
    with gated(node("n0", gpus=2)) as cluster:
        cluster.gang("train", 2, group_annotations=on_group, annotations=on_pods)
        cluster.settle()
        assert cluster.where("train") == ["n0", "n0"]


def test_a_pod_that_was_never_gated_is_left_alone_whatever_its_annotations_say():
    with gated(node("n0", gpus=2)) as cluster:
        cluster.gang(
            "train", 1, gates=[], annotations={BIND_DEADLINE: "soon"}, nodeSelector={"no": "x"}
        )
        cluster.gang("other", 1)
        cluster.settle()
        assert cluster.where("other") == ["n0"]


def test_a_pod_group_may_say_nothing_or_a_time_that_is_none():
    with gated(node("n0", gpus=3)) as cluster:
        empty = pod_group("empty", 1)
        del empty["spec"]
        cluster.server.create("podgroups", empty)
        labels = {POD_GROUP_LABEL: "empty"}
        cluster.jobs.owned("empty", [pod("", gpus=1, gates=[GATE], labels=labels)])
        cluster.gang("train", 2, scheduleTimeoutSeconds=-1)
        cluster.settle()
        assert cluster.where("empty") == ["n0"]
        assert cluster.where("train") == ["n0", "n0"]
        groups = [one for one in cluster.server.all("events") if one["reason"] == "Planned"]
        assert {one["involvedObject"]["kind"] for one in groups} == {"PodGroup"}


def test_equal_clusters_equal_steps_in_whatever_order_they_were_told():
    with gated(node("n0"), node("n1")) as cluster:
        for name in ("a", "b", "c"):
            cluster.gang(name, 2, gpus=0)
            cluster.gang(f"wide-{name}", 9, gpus=2)
        seen = cluster.snapshot()
        turned = Snapshot(
            seen.version,
            dict(list(seen.nodes.items())[::-1]),
            dict(list(seen.pods.items())[::-1]),
            dict(list(seen.pod_groups.items())[::-1]),
        )
        assert cluster.gate.step(turned, cluster.now_s) == cluster.step()


def test_an_affinity_term_that_no_node_meets_stays_as_it_is():
    named = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    with gated(node("n0")) as cluster:
        cluster.gang("train", 2, affinity=node_affinity({"matchExpressions": [named]}, {}))
        assert cluster.write(50) < 50
        cluster.settle()
        assert cluster.where("train") == ["n0", "n0"]


def test_members_planned_on_a_node_that_is_gone_are_all_missed():
    with gated(node("n0", gpus=3), node("n1", gpus=2)) as cluster:
        cluster.gang("train", 5, 4, scheduleTimeoutSeconds=3600)
        cluster.write(1)
        cluster.server.delete("nodes", "n0")
        cluster.settle()
        assert "planned nodes do not exist any more: n0" in cluster.events("PlanRolledBack")[0]


@pytest.mark.parametrize("left", [None, Plan().to_json()])
def test_of_a_gang_whose_plan_somebody_changed_all_is_given_back_if_it_is_not_whole(left):
    with gated(node("n0", gpus=4)) as cluster:
        cluster.gang("train", 4, scheduleTimeoutSeconds=60)
        cluster.write()
        cluster.server.create("pods", pod("thief", gpus=1, nodeName="n0"))
        cluster.server.change("podgroups", "train", {"metadata": {"annotations": {PLAN: left}}})
        cluster.settle()
        assert len(cluster.where("train")) == 3
        cluster.later(60.0)
        cluster.settle()
        assert cluster.where("train") == []
        assert released(cluster, "train") == 0


def test_a_copy_of_a_released_pod_is_nobody_s_to_delete():
    with gated(node("n0")) as cluster:
        (name,) = cluster.jobs.owned("alone", [pod("", gpus=1, gates=[GATE])])
        cluster.write()
        copied = noted(cluster, name, "pods")
        assert copied[DEVICES] == "n0/0"
        cluster.server.create("pods", pod("copy", annotations=copied, nodeSelector={"no": "x"}))
        cluster.later(3600.0)
        cluster.settle()
        assert cluster.server.get("pods", "copy") is not None


def test_what_the_api_server_will_not_have_written_holds_up_nobody_else():
    with gated(node("n0", gpus=2), node("n1", gpus=2)) as cluster:
        cluster.gang("bad", 2)
        cluster.later(1)
        cluster.gang("worse", 1)
        cluster.later(1)
        cluster.gang("good", 2)
        cluster.server.answer("PATCH", "pods/bad", 500, times=10_000)  # an admission webhook
        cluster.server.answer("PATCH", "podgroups/worse", 403, times=10_000)
        stopping = threading.Event()
        with Cache(cluster.server.client(retries=False)) as cache:
            writer = Writer(cluster.server.client(retries=False), cache.put)
            gate = threading.Thread(
                target=run_gate, args=(cluster.gate, cache, writer, stopping),
                kwargs={"clock": lambda: cluster.now_s},
            )  # fmt: skip
            gate.start()
            try:
                ends_s = time.monotonic() + 30.0
                while released(cluster, "good") < 2:
                    assert time.monotonic() < ends_s
                    time.sleep(0.02)
            finally:
                stopping.set()
                gate.join()
        assert released(cluster, "bad") == released(cluster, "worse") == 0
        planned = [plan_of(cluster, name).devices.values() for name in ("bad", "good")]
        assert len({device for devices in planned for device in devices}) == 4
        writes = [one for one in cluster.server.requests if one.method == "PATCH"]
        assert len(writes) < 50


def test_a_gang_that_an_empty_node_could_hold_waits_for_one():
    with gated(node("n0", gpus=4), node("n1", gpus=4), node("small", gpus=4, cpus=2)) as cluster:
        for name in ("n0", "n1"):
            cluster.server.create("pods", pod(f"busy-{name}", gpus=2, nodeName=name))
        cluster.gang("train", 4)
        cluster.settle()
        assert cluster.where("train") == []  # small has CPUs for two of them, full or empty
        cluster.server.set_phase("busy-n1", "Succeeded")
        cluster.settle()
        assert cluster.where("train") == ["n1"] * 4


def test_members_that_have_done_their_part_count_also_when_somebody_deletes_them():
    with gated(node("n0", gpus=4)) as cluster:
        cluster.gang("train", 3, scheduleTimeoutSeconds=60)
        cluster.settle()
        first, second, third = (one["metadata"]["name"] for one in cluster.of("train"))
        cluster.server.set_phase(first, "Succeeded")
        cluster.settle()
        cluster.server.delete("pods", first)
        cluster.settle()
        cluster.later(61.0)
        cluster.settle()
        assert len(cluster.where("train")) == 2
        cluster.server.set_phase(second, "Failed")  # and its owner creates it anew
        cluster.settle()
        cluster.later(61.0)
        cluster.settle()
        assert (
            sum(bool(bound_node(one)) and not is_finished(one) for one in cluster.of("train")) == 2
        )
        # Another run under the same PodGroup begins anew.
        for one in cluster.of("train"):
            cluster.server.set_phase(one["metadata"]["name"], "Succeeded")
        cluster.settle()
        assert PLAN not in noted(cluster, "train")
        labels = {POD_GROUP_LABEL: "train"}
        cluster.server.create("pods", pod("taken", gpus=2, nodeName="n0"))
        cluster.jobs.owned("again", [pod("", gpus=1, gates=[GATE], labels=labels)] * 3)
        cluster.settle()
        assert (
            sum(bool(bound_node(one)) and not is_finished(one) for one in cluster.of("train")) == 0
        )
        assert third


def disturb(cluster, rng):
    """Something happens, as it may at any time."""
    server = cluster.server
    pods = [
        one
        for one in server.all("pods")
        if bound_node(one) and not is_finished(one) and not is_terminating(one)
    ]
    what = rng.randrange(10)
    if what == 0:
        cluster.restart()
    elif what == 1:
        with suppress(HttpError):
            cluster.scheduler.step()
    elif what == 2:
        cluster.jobs.step()
    elif what == 3 and pods:
        phase = rng.choice(["Running", "Failed", "Succeeded"])
        server.set_phase(rng.choice(pods)["metadata"]["name"], phase)
    elif what == 4 and pods:
        one = rng.choice(pods)["metadata"]
        server.delete("pods", one["name"])
        if server.get("pods", one["name"]) is not None:
            server.finish(one["name"])
    elif what == 5:
        name = f"n{rng.randrange(4)}"
        if server.get("nodes", name) is None:
            server.create("nodes", node(name, gpus=rng.randint(1, 4)))
        else:
            server.delete("nodes", name)
    elif what == 6:
        free = [one["metadata"]["name"] for one in server.all("nodes")]
        thief = pod(f"thief{rng.getrandbits(40)}", gpus=1)
        server.create("pods", {**thief, "spec": {**thief["spec"], "nodeName": rng.choice(free)}}
                      if free else thief)  # fmt: skip
    elif what == 7:
        server.drop("PATCH", ".", rng.choice(["before", "after"]))
    elif what == 8:
        server.answer("PATCH", ".", rng.choice([409, 500]))
    else:
        cluster.later(rng.choice([1.0, 10.0, 70.0]))


def held(cluster):
    """Of every gang that is looked at between two writes: nobody is free without a plan."""
    for group in cluster.server.all("podgroups"):
        name, least = group["metadata"]["name"], group["spec"]["minMember"]
        plan = Plan.from_json(noted(cluster, name).get(PLAN, ""))
        live = [one for one in cluster.of(name) if not is_finished(one) and not is_terminating(one)]
        free = [one["metadata"]["uid"] for one in live if not one["spec"].get("schedulingGates")]
        assert not free or plan is not None
        yield name, least, plan, free


@pytest.mark.parametrize("seed", range(8))
def test_law_a_gang_runs_with_none_of_its_members_or_with_enough_whatever_happens(seed):
    rng = random.Random(seed)
    nodes = node("n0", gpus=4), node("n1", gpus=3), node("n2", gpus=2)
    with gated(*nodes, policy=Gang(near="cluster")) as cluster:
        for i in range(4):
            pods = rng.randint(1, 5)
            cluster.gang(f"g{i}", pods, rng.randint(1, pods), scheduleTimeoutSeconds=30)
            cluster.later(1)
        for _ in range(60):
            with suppress(ApiException, HTTPError):
                cluster.write(rng.randint(0, 4))
            list(held(cluster))
            disturb(cluster, rng)
        cluster.server.calm()
        for one in cluster.server.all("pods"):
            if one["metadata"]["name"].startswith("thief"):
                cluster.server.delete("pods", one["metadata"]["name"])
                if cluster.server.get("pods", one["metadata"]["name"]) is not None:
                    cluster.server.finish(one["metadata"]["name"])
        for name in ("x0", "x1"):
            cluster.server.create("nodes", node(name, gpus=16))
        for _ in range(8):
            cluster.settle()
            cluster.later(700.0)
        cluster.settle()
        for name, least, plan, _ in held(cluster):
            members = cluster.of(name)
            done = sum(map(has_succeeded, members))
            bound = sum(bool(bound_node(one)) and not is_finished(one) for one in members)
            assert done + bound >= least, (name, plan)
            assert RESERVATION not in noted(cluster, name)
