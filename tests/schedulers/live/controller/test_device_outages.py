"""Outages of devices of a live cluster: journalled, replayable, and following the device."""

from __future__ import annotations

import json

from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.device_outages import (
    MAX_OUTAGES,
    SYMPTOM_S,
    DeviceOutages,
)
from presage.schedulers.live.controller.journal.records import record_from_json
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.test_core import LEASE_S, V100, World

GONE_S = LEASE_S + END_S + 1
MODEL = HazardModel(0.01, 0.3, (1.0,))


def report(world, node, *ids, agent_id="one"):
    message = pb.NodeReport(
        node=node, agent_id=agent_id, number=1,
        devices=[pb.Device(kind=V100[0], memory_bytes=V100[1], id=one) for one in ids],
    )  # fmt: skip
    assert not world.core.rejection_reason(message)
    wrote = world.write(world.core.report(message, world.now_s, world.now_s))
    world.core.note_report(message, world.now_s)
    return wrote


def lose_all(world):
    world.now_s += GONE_S
    return world.write(world.core.find_lost(world.now_s, world.now_s))


def spans(world):
    return world.core.state.outages.spans


def hazards(world):
    """Return the chance of each available device to fail within a day, by its id."""
    view = world.core.view(world.now_s)
    found = OutageHazards(MODEL).hazards(view.state(world.now_s), DAY_S, interval=False)
    return dict(zip(view.device_ids, found.probability.tolist(), strict=True))


def test_a_lost_node_is_an_outage_of_its_devices_until_it_reports_again():
    world = World()
    assert report(world, "a", "GPU-1", "GPU-2") == ["NodeJoined"]
    assert lose_all(world) == ["NodeLost"]
    lost_s = world.now_s
    assert spans(world) == {"GPU-1": [[lost_s, None]], "GPU-2": [[lost_s, None]]}
    world.now_s += 50
    report(world, "a", "GPU-1", "GPU-2")

    assert spans(world) == {"GPU-1": [[lost_s, lost_s + 50]], "GPU-2": [[lost_s, lost_s + 50]]}


def test_the_history_is_replayed_from_the_journal_and_from_a_snapshot():
    world = World()
    report(world, "a", "GPU-1", "")
    lose_all(world)
    report(world, "a", "GPU-1", "")
    lose_all(world)

    replayed = ReplayedState()
    for row in json.loads(json.dumps(world.rows)):
        replayed.apply(record_from_json(row))
    assert replayed.outages == world.core.state.outages
    assert [len(found) for found in replayed.outages.spans.values()] == [2, 2]
    rows = json.loads(json.dumps(world.core.state.take_changes()))
    loaded = ReplayedState.from_rows({key: row for key, row in rows.items() if row is not None})
    assert loaded.outages == world.core.state.outages
    assert loaded.nodes == world.core.state.nodes


def test_the_history_follows_a_device_to_a_node_of_another_name():
    world = World()
    report(world, "a", "GPU-1", "GPU-2")
    lose_all(world)
    world.now_s += 5
    report(world, "renamed", "GPU-0", "GPU-2", agent_id="two")
    found = hazards(world)

    assert found["GPU-2"] > found["GPU-0"]
    assert spans(world)["GPU-1"][-1][1] is None  # no node has it any more


def test_a_device_that_replaces_another_one_has_no_history():
    world = World()
    report(world, "a", "GPU-1", "GPU-2")
    lose_all(world)
    assert report(world, "a", "GPU-3", "GPU-2") == ["NodeJoined"]
    found = hazards(world)

    assert found["GPU-2"] > found["GPU-3"]
    # The view follows a device that is replaced while its node stays up.
    assert report(world, "a", "GPU-3", "GPU-4") == ["NodeJoined"]
    assert hazards(world)["GPU-4"] == hazards(world)["GPU-3"]


def test_devices_without_an_id_are_known_by_node_and_number():
    world = World()
    report(world, "a", "", "")
    lose_all(world)
    report(world, "a", "", "")
    report(world, "b", "", agent_id="two")
    found = hazards(world)

    assert list(found) == ["a/0", "a/1", "b/0"]
    assert found["a/0"] == found["a/1"] > found["b/0"]


def test_a_drained_node_that_is_lost_has_not_failed():
    world = World()
    report(world, "a", "GPU-1")
    world.core.state.nodes["a"].drained = True
    lose_all(world)

    assert spans(world) == {}


def test_journals_without_ids_of_devices_are_replayed():
    row = {"type": "NodeJoined", "node": "a", "agent_id": "x", "devices": [["v100", 1]],
           "time_s": 1.0}  # fmt: skip
    state = ReplayedState()
    state.apply(record_from_json(row))
    state.apply(record_from_json({"type": "NodeLost", "node": "a", "time_s": 9.0}))

    assert state.outages.spans == {"a/0": [[9.0, None]]}


def test_only_the_newest_outages_of_a_device_are_kept():
    outages = DeviceOutages()
    for at_s in range(MAX_OUTAGES + 5):
        assert outages.fail(["x"], float(at_s)) == ["x"]
        assert outages.fail(["x"], at_s + 0.1) == []
        assert outages.repair(["x"], at_s + 0.5) == ["x"]
        assert outages.repair(["x", "y"], at_s + 0.6) == []

    assert len(outages.spans["x"]) == MAX_OUTAGES
    assert outages.spans["x"][-1] == [MAX_OUTAGES + 4, MAX_OUTAGES + 4.5]
    assert len(outages.history().events) == 2 * MAX_OUTAGES


def test_a_symptom_is_neither_an_outage_nor_a_failure():
    outages = DeviceOutages()
    assert outages.note_symptom("x", 10.0) == ["x"]
    assert outages.note_symptom("x", 10.0 + SYMPTOM_S - 1) == []  # one symptom
    outages.fail(["x"], 5_000.0)
    assert outages.note_symptom("x", 6_000.0) == []  # it is down
    outages.repair(["x"], 7_000.0)
    for at_s in range(8_000, 8_000 + 4_000 * MAX_OUTAGES, 4_000):
        assert outages.note_symptom("x", float(at_s)) == ["x"]

    assert len(outages.symptoms["x"]) == MAX_OUTAGES
    history = outages.history()
    assert list(history.outages) == ["x"]
    assert [one.is_repair for one in history.events[:3]] == [False, True, True]
    assert history.down_s(1e9) == 2_000.0
