"""Conditions and taints of nodes become outages, from which policies of the gate read hazards."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.features.hazard.hazard_model import HazardModel
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.kubernetes.fleet import FleetOptions, make_fleet
from presage.schedulers.kubernetes.gate import node_outages
from presage.schedulers.kubernetes.gate.node_outages import EARLIER_S, NodeOutages
from presage.schedulers.policies.gang.gang_policy import Gang
from tests.schedulers.kubernetes.gated import gated_cluster
from tests.schedulers.kubernetes.manifests import node

DAY_S, HOUR_S = 86_400.0, 3600.0
NOW_S = datetime(2026, 6, 1, tzinfo=UTC).timestamp()


def text(at_s):
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ready(status="True", at_s=0.0):
    since = {"lastTransitionTime": text(at_s)} if at_s else {}
    return {"type": "Ready", "status": status, **since}


def machine(name, *conditions, gpus=2, created_s=NOW_S - 90 * DAY_S, taints=(), uuid=""):
    found = node(name, gpus=gpus, taints=taints)
    found["metadata"]["creationTimestamp"] = text(created_s)
    found["status"]["conditions"] = list(conditions or (ready(at_s=created_s),))
    found["status"]["nodeInfo"] = {"systemUUID": uuid}
    return found


def fleet(*nodes):
    return make_fleet(nodes, FleetOptions())


def spans(outages):
    return {
        device_id: [tuple(one) for one in found]
        for device_id, found in outages.history.outages.items()
    }


class Careful(Gang):
    """Policy that plans gangs, and records the hazards that it could use."""

    def __init__(self):
        super().__init__()
        self.needs = replace(self.needs, hazards=True)
        self.hazards, self.outages = [], {}

    def decide(self, state, forecasts, rng):
        self.hazards.append(forecasts.hazards(state, DAY_S).probability)
        self.outages = {key: list(found) for key, found in state.outages.outages.items()}
        return super().decide(state, forecasts, rng)


def set_ready(cluster, name, status):
    condition = ready(status, cluster.now_s)
    cluster.server.change("nodes", name, {"status": {"conditions": [condition]}}, status=True)


def test_a_policy_of_the_gate_reads_hazards_that_rise_after_an_outage():
    policy = Careful()
    with gated_cluster(node("n0", gpus=2), node("n1", gpus=2), policy=policy) as cluster:
        cluster.create_gang("train", 2)
        cluster.step()
        first = policy.hazards[-1]
        assert first.shape == (4,)
        assert (first > 0).all()
        assert (first == first[0]).all()

        cluster.advance(HOUR_S)
        set_ready(cluster, "n1", "Unknown")
        cluster.step()
        cluster.advance(HOUR_S)
        set_ready(cluster, "n1", "True")
        cluster.advance(60.0)
        cluster.step()
        assert policy.outages.keys() == {"n1/0", "n1/1"}
        began_s = cluster.now_s - HOUR_S - 60.0
        assert policy.outages["n1/0"] == [(began_s, began_s + HOUR_S)]
        hazards = policy.hazards[-1]
        assert (hazards[2:] > 3 * hazards[:2]).all()
        cluster.advance(60 * DAY_S)
        cluster.step()
        assert (policy.hazards[-1][2:] < hazards[2:]).all()


def test_a_policy_of_the_gate_reads_the_hazards_of_the_given_model():
    policy, hazards = Careful(), OutageHazards(HazardModel(1e3, 0.0, ()))
    with gated_cluster(node("n0", gpus=2), policy=policy, hazards=hazards) as cluster:
        cluster.create_gang("train", 2)
        cluster.step()
        assert policy.hazards[-1].tolist() == [1.0, 1.0]


def test_a_policy_without_hazards_gets_no_history(monkeypatch):
    followed: list[object] = []
    monkeypatch.setattr(NodeOutages, "update", lambda *_: followed.append(1))
    with gated_cluster(node("n0", gpus=2)) as cluster:
        cluster.create_gang("train", 2)
        set_ready(cluster, "n0", "False")
        cluster.step()
    assert not followed


def test_outages_begin_and_end_at_the_transitions_of_conditions():
    outages = NodeOutages()
    outages.update(fleet(machine("a"), machine("b")), NOW_S)
    assert spans(outages) == {}
    outages.update(fleet(machine("a", ready("False", NOW_S + 10.0)), machine("b")), NOW_S + 60.0)
    outages.update(fleet(machine("a", ready("True", NOW_S + 90.0)), machine("b")), NOW_S + 120.0)
    assert spans(outages) == {
        "a/0": [(NOW_S + 10.0, NOW_S + 90.0)], "a/1": [(NOW_S + 10.0, NOW_S + 90.0)]
    }  # fmt: skip


def test_a_condition_that_names_a_device_is_an_outage_of_that_device():
    def xid(device):
        message = f"ErrorCode:79 {device} XID error occured Recommended Action=NODE_REBOOT;"
        return {"type": "GpuXidError", "status": "True", "message": message,
                "lastTransitionTime": text(NOW_S + 5.0)}  # fmt: skip

    outages = NodeOutages()
    outages.update(fleet(machine("a")), NOW_S)
    outages.update(fleet(machine("a", ready(), xid("gpu:1"))), NOW_S + 9.0)
    assert list(spans(outages)) == ["a/1"]
    # The API has no numbers for addresses, so all devices of the node count.
    outages.update(fleet(machine("a", ready(), xid("PCI:0000:3B:00"))), NOW_S + 20.0)
    assert [one for one in ("a/0", "a/1") if outages.history.is_down(one)] == ["a/0", "a/1"]
    outages.update(fleet(machine("a")), NOW_S + 40.0)
    assert spans(outages)["a/1"] == [(NOW_S + 5.0, NOW_S + 40.0)]


def test_taints_of_monitors_count_and_those_of_operators_do_not():
    def taint(key, effect, **more):
        return {"key": key, "value": "", "effect": effect, **more}

    at = {"timeAdded": text(NOW_S - HOUR_S)}
    outages = NodeOutages()
    outages.update(
        fleet(
            machine("a", taints=[taint("nvidia.com/gpu-xid-error", "NoExecute", **at)]),
            machine("b", taints=[taint("nvidia.com/gpu-xid-error", "NoSchedule")]),
            machine("c", taints=[taint("team", "NoExecute", **at), taint("nvidia.com/gpu", "X")]),
        ),
        NOW_S,
    )
    assert {key: found[0][0] for key, found in spans(outages).items()} == {
        "a/0": NOW_S - HOUR_S, "a/1": NOW_S - HOUR_S, "b/0": NOW_S, "b/1": NOW_S
    }  # fmt: skip


def test_after_a_restart_the_last_outage_of_each_node_is_known():
    outages = NodeOutages()
    outages.update(
        fleet(
            machine("again", ready(at_s=NOW_S - 2 * DAY_S)),
            machine("long-ago", ready(at_s=NOW_S - EARLIER_S - DAY_S)),
            machine("new", ready(at_s=NOW_S - 60.0), created_s=NOW_S - 120.0),
            machine("down", ready("Unknown", NOW_S - HOUR_S)),
        ),
        NOW_S,
    )
    assert outages.history.observed_from_s == NOW_S - EARLIER_S
    assert {key: found[0][0] for key, found in spans(outages).items() if key.endswith("/0")} == {
        "again/0": NOW_S - 2 * DAY_S, "down/0": NOW_S - HOUR_S
    }  # fmt: skip
    assert not outages.history.is_down("again/0")
    assert outages.history.is_down("down/0")


def test_the_history_follows_a_machine_to_another_name_and_ends_if_it_leaves():
    outages = NodeOutages()
    outages.update(fleet(machine("a", ready("False", NOW_S), uuid="u1"), machine("b")), NOW_S)
    outages.update(fleet(machine("renamed", uuid="u1"), machine("b")), NOW_S + 60.0)
    assert list(outages.device_ids) == ["b/0", "b/1", "u1/0", "u1/1"]
    assert spans(outages)["u1/0"] == [(NOW_S, NOW_S + 60.0)]

    outages.update(fleet(machine("renamed", ready("False"), uuid="u1"), machine("b")), NOW_S + 90.0)
    before = outages.device_ids
    outages.update(fleet(machine("b")), NOW_S + 120.0)
    assert not outages.history.is_down("u1/0")
    assert list(outages.device_ids) == ["b/0", "b/1"]
    assert before is not outages.device_ids


def test_device_ids_are_the_same_object_while_the_fleet_is_the_same():
    outages = NodeOutages()
    outages.update(fleet(machine("a"), machine("b")), NOW_S)
    before = outages.device_ids
    outages.update(fleet(machine("a", ready("False", NOW_S)), machine("b")), NOW_S + 1.0)
    assert outages.device_ids is before


def test_equal_uuids_are_ignored_and_clock_skew_is_limited_to_now():
    outages = NodeOutages()
    nodes = [machine(name, ready("False", NOW_S + DAY_S), uuid="same") for name in ("a", "b")]
    outages.update(fleet(*nodes), NOW_S)
    assert {key: found[0][0] for key, found in spans(outages).items()} == dict.fromkeys(
        ("a/0", "a/1", "b/0", "b/1"), NOW_S
    )


def test_a_long_history_keeps_its_newer_half(monkeypatch):
    monkeypatch.setattr(node_outages, "MOST_EVENTS", 20)
    outages = NodeOutages()
    for i in range(30):
        status = "True" if i % 2 else "False"
        outages.update(fleet(machine("a", ready(status, NOW_S + i), gpus=1)), NOW_S + i)
    assert len(outages.history.events) <= 20
    assert spans(outages)["a/0"][-1] == (NOW_S + 28.0, NOW_S + 29.0)
