"""Health signals in the controller's core: withdrawn devices, evidence for hazards, replay."""

from __future__ import annotations

import json

import pytest

from presage.errors import InvalidRequestError, UnknownJobError
from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.device_outages import SYMPTOM_S
from presage.schedulers.live.controller.devices.device_health import MAX_RECENT, REPEAT_S
from presage.schedulers.live.controller.devices.signals import MAX_REASON
from presage.schedulers.live.controller.explanations.event_sentences import event_details
from presage.schedulers.live.controller.explanations.explain import find_candidates, summarize_job
from presage.schedulers.live.controller.journal.records import record_from_json
from presage.schedulers.live.controller.replayed_state import ReplayedState, Stage
from presage.schedulers.live.controller.server.node_service import MAX_SIGNALS, _check_report
from presage.schedulers.live.controller.status_messages import node_status
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.elastic.test_elastic_jobs import ElasticWorld
from tests.schedulers.live.controller.test_core import GRACE_S, LEASE_S, V100, World, ended, task

XID_79 = ("xid", "failed", "Xid 79: the GPU has fallen off the bus")
XID_63 = ("xid", "degraded", "Xid 63: a memory row or page is to be remapped")
XID_13 = ("xid", "notice", "Xid 13: exception of an application")
LOST_BY_DRIVER = ("rows", "failed", "the driver does not list the GPU any more")
LISTED = ("rows", "healthy", "the driver lists the GPU without a failure")
GONE_S = LEASE_S + GRACE_S + END_S + 1
MODEL = HazardModel(0.01, 0.3, (1.0,))
DEVICES = ("GPU-0", "GPU-1")


def signals_of(*rows):
    """Return messages of (number, device, (source, severity, reason))."""
    return [
        pb.HealthSignal(number=number, device=device, source=source, severity=severity, reason=why)
        for number, device, (source, severity, why) in rows
    ]


def report(
    world, *signals, node="a", ids=DEVICES, tasks=(), orders=0, signals_id="s", write=True
):  # fmt: skip
    """Let the agent of a node report signals; return the types of the records."""
    message = pb.NodeReport(
        node=node, agent_id=f"agent of {node}", number=1, tasks=tasks, commands_version=orders,
        devices=[pb.Device(kind=V100[0], memory_bytes=V100[1], id=one) for one in ids],
        signals=signals_of(*signals), signals_id=signals_id,
    )  # fmt: skip
    assert not world.core.rejection_reason(message)
    records = world.core.report(message, world.now_s, world.now_s)
    wrote = world.write(records) if write else []
    world.core.note_report(message, world.now_s)
    return wrote


def lose_all(world):
    world.now_s += GONE_S
    return world.write(world.core.find_lost(world.now_s, world.now_s))


def drain(world, name, undo=False):
    return world.write(world.core.drain(name, undo=undo, evict=False, now_s=world.now_s))


def reasons(world, node="a"):
    """Return why the devices of a node get no jobs."""
    return [one.reason for one in node_status(world.core, node, world.now_s).devices]


def acknowledged(world, node="a"):
    commands = world.core.commands(node)
    return commands.signals_id, commands.signals_number


def hazards(world):
    view = world.core.view(world.now_s)
    found = OutageHazards(MODEL).hazards(view.state(world.now_s), DAY_S, interval=False)
    return dict(zip(view.device_ids, found.probability.tolist(), strict=True))


def replayed(world):
    """Return the states from the journal, and from a snapshot of the current state."""
    from_journal = ReplayedState()
    for row in json.loads(json.dumps(world.rows)):
        from_journal.apply(record_from_json(row))
    changed = set(world.core.state.changed_keys)
    rows = json.loads(json.dumps(world.core.state.take_changes()))
    world.core.state.changed_keys |= changed
    return from_journal, ReplayedState.from_rows({k: v for k, v in rows.items() if v is not None})


@pytest.fixture
def world():
    """Node "a" with two GPUs, and one single-device job on each."""
    world = World()
    report(world)
    world.submit("one", "two")
    world.decide()
    report(world, tasks=[running(world, "one"), running(world, "two")])
    assert device_of(world, "one") != device_of(world, "two")
    return world


def device_of(world, name):
    return world.core.state.jobs[name].allocations[0][0]


def running(world, name, **values):
    """Return the report of a job's task, on the devices that were planned."""
    job = world.core.state.jobs[name]
    allocations = [
        pb.Allocation(device=device, compute_milli=milli, memory_bytes=memory)
        for device, milli, memory in job.allocations
    ]
    return task(name, job.attempt, allocations=allocations, **values)


def test_a_failed_signal_withdraws_one_device_and_stops_its_job(world):
    hit = device_of(world, "one")
    tasks = [running(world, "one"), running(world, "two")]

    assert report(world, (1, hit, XID_79), tasks=tasks) == ["HealthReported", "Stopping"]
    assert world.stage("one") is Stage.LEAVING
    assert world.stage("two") is Stage.RUNNING
    reason = f"it failed: {XID_79[2]}"
    assert reasons(world)[hit] == reason
    assert reasons(world)[1 - hit] == ""
    assert world.core.state.jobs["one"].reason == f"device a/{hit} is withdrawn: {reason}"
    assert acknowledged(world) == ("s", 1)
    assert list(world.core.commands("a").withdrawn_devices) == [hit]

    over = ended("one", requested=True, saved=0.5)
    assert report(world, tasks=[over, running(world, "two")]) == ["Requeued"]
    assert world.decide() == []  # there is no other device for it
    view = world.core.view(world.now_s)
    assert view.state(world.now_s).failed_devices == {hit}
    assert view.state(world.now_s).outages.is_down(f"GPU-{hit}")
    assert f"withdrawn: a/{hit} ({reason})" in summarize_job(
        world.core, world.core.state.jobs["one"], 1, world.now_s
    )
    (verdict,) = [
        one.verdict
        for one in find_candidates(world.core, world.core.state.jobs["one"], world.now_s)
        if one.device == hit
    ]
    assert verdict == f"withdrawn: {reason}"

    report(world, node="b", ids=("GPU-9",), tasks=())
    assert world.decide() == ["Placed"]
    assert world.nodes_with("one") == ["b"]
    assert world.nodes_with("two") == ["a"]


def test_repeats_are_ignored_and_acknowledged(world):
    first = ((1, 0, XID_79), (2, 1, XID_63), (3, 1, XID_13))
    assert report(world, *first)[0] == "HealthReported"
    rows = len(world.rows)

    assert "HealthReported" not in report(world, *first)
    assert acknowledged(world) == ("s", 3)
    world.core = world.begin()  # a controller that was restarted
    assert "HealthReported" not in report(world, *first)
    # The agent was restarted, too, and has read its sources again.
    again = ((1, 1, XID_13), (2, 0, XID_79), (3, 0, XID_79), (4, 1, XID_63))
    assert "HealthReported" not in report(world, *again, signals_id="t")
    assert acknowledged(world) == ("t", 4)
    assert [one["type"] for one in world.rows[rows:] if one["type"] == "HealthReported"] == []


def test_signals_are_not_acknowledged_before_they_are_written(world):
    report(world, (7, 0, XID_79), write=False)  # the journal cannot be written
    assert acknowledged(world) == ("s", 0)
    assert reasons(world) == ["", ""]

    report(world, (7, 0, XID_79), (8, 0, XID_13))
    assert acknowledged(world) == ("s", 8)
    assert reasons(world)[0]
    report(world)  # its agent has removed them
    assert acknowledged(world) == ("s", 8)


def test_an_agent_without_signals_and_a_node_that_joins_with_some():
    world = World()
    world.report("old")  # by an agent that knows no signals
    assert acknowledged(world, "old") == ("", 0)
    assert report(world, (1, 0, XID_79)) == ["NodeJoined"]
    assert acknowledged(world) == ("s", 0)  # it repeats them
    assert report(world, (1, 0, XID_79)) == ["HealthReported"]
    assert acknowledged(world) == ("s", 1)


@pytest.mark.parametrize(
    "signal",
    [
        (1, 2, XID_79),
        (1, -1, XID_79),
        (1, 2**31 - 1, XID_79),
        (1, 0, ("xid", "terrible", "a later version")),
        (1, 0, ("", "", "")),
        (1, 0, ("magic", "failed", "an unknown source")),
        (0, 0, XID_79),
        (1, 0, LISTED),
    ],
)
def test_signals_that_say_nothing_are_dropped(world, signal):
    assert report(world, signal) == []
    assert acknowledged(world) == ("s", signal[0])
    assert reasons(world) == ["", ""]


def test_reasons_are_short_and_printable(world):
    report(world, (1, 0, ("xid", "failed", "bad\n\x1b[31m" + 10_000 * "x")))
    (reason,) = filter(None, reasons(world))

    assert reason.isprintable()
    assert len(reason) < MAX_REASON + 20


def test_a_report_has_a_limited_number_of_signals():
    message = pb.NodeReport(
        node="a", agent_id="x", devices=[pb.Device(kind="v100", memory_bytes=1)],
        signals=signals_of(*((number, 0, XID_13) for number in range(MAX_SIGNALS))),
    )  # fmt: skip
    _check_report(message)
    message.signals.add()
    with pytest.raises(InvalidRequestError, match="1025 signals"):
        _check_report(message)


def test_a_degraded_device_stays_and_its_hazard_rises(world):
    before = hazards(world)
    assert before["GPU-0"] == before["GPU-1"]
    world.now_s += 1.0
    assert report(world, (1, 1, XID_63)) == ["HealthReported"]
    after = hazards(world)

    assert after["GPU-1"] > after["GPU-0"]
    assert after["GPU-0"] == pytest.approx(before["GPU-0"], rel=1e-6)  # no device has failed
    assert reasons(world) == ["", ""]
    state = world.core.state
    assert (state.outages.spans, state.outages.symptoms) == ({}, {"GPU-1": [world.now_s]})
    # Different signals within an hour are one symptom, and the same one is not recorded again.
    world.now_s += SYMPTOM_S / 2
    report(world, (2, 1, ("ecc", "degraded", "3 new uncorrectable memory errors")))
    assert report(world, (3, 1, XID_63)) == []
    assert len(state.outages.symptoms["GPU-1"]) == 1
    world.now_s += REPEAT_S
    assert report(world, (4, 1, XID_63)) == ["HealthReported"]
    assert len(state.outages.symptoms["GPU-1"]) == 2
    assert hazards(world)["GPU-1"] > after["GPU-1"]


def test_a_notice_is_only_recorded(world):
    before = hazards(world)
    assert report(world, (1, 1, XID_13)) == ["HealthReported"]

    assert hazards(world) == before
    assert reasons(world) == ["", ""]
    record = record_from_json(world.rows[-1])
    assert event_details(record) == f"device 1 notice: {XID_13[2]}"


def test_a_flood_of_signals_is_bounded_in_the_state_and_in_events(world):
    rows = [(n, 0, ("xid", "notice", f"Xid {n}")) for n in range(1, MAX_SIGNALS)]
    report(world, *rows)
    health = world.core.state.health["GPU-0"]

    assert len(health.recent) == MAX_RECENT
    details = event_details(record_from_json(world.rows[-1]))
    assert details.endswith(f"; {MAX_SIGNALS - 9} more")


def test_an_operator_returns_a_device(world):
    hit = device_of(world, "one")
    report(world, (1, hit, XID_79), (2, hit, LOST_BY_DRIVER))
    failed_s = world.now_s
    world.now_s += 100
    report(world)
    assert drain(world, f"a/{hit}", undo=True) == ["DeviceDrained"]

    assert reasons(world) == ["", ""]
    assert world.core.state.outages.spans == {f"GPU-{hit}": [[failed_s, world.now_s]]}
    assert hazards(world)[f"GPU-{hit}"] > hazards(world)[f"GPU-{1 - hit}"]
    assert drain(world, f"a/{hit}", undo=True) == []
    # The old signal does not withdraw it again, and a new one does.
    assert "HealthReported" not in report(world, (1, hit, XID_79))
    assert report(world, (3, hit, XID_79))[0] == "HealthReported"
    assert reasons(world)[hit]


def test_an_operator_withdraws_a_device_without_an_outage(world):
    hit = device_of(world, "one")
    assert drain(world, f"a/{hit}") == ["DeviceDrained", "Stopping"]
    assert drain(world, f"a/{hit}") == []
    assert world.core.jobs_at(f"a/{hit}") == ["one"]
    assert world.core.jobs_at("a") == ["one", "two"]

    assert reasons(world)[hit] == "it is drained"
    state = world.core.view(world.now_s).state(world.now_s)
    assert state.failed_devices == {hit}
    assert state.outages.outages == {}
    # What happens under maintenance is no evidence.
    report(world, (1, hit, XID_79), (2, hit, XID_63))
    assert (world.core.state.outages.spans, world.core.state.outages.symptoms) == ({}, {})
    assert reasons(world)[hit] == f"it failed: {XID_79[2]}"
    lose_all(world)
    assert list(world.core.state.outages.spans) == [f"GPU-{1 - hit}"]
    report(world)
    drain(world, f"a/{hit}", undo=True)
    assert reasons(world) == ["", ""]


def test_signals_of_a_drained_node_are_no_evidence(world):
    drain(world, "a")
    report(world, (1, 0, XID_79), (2, 1, XID_63))
    drain(world, "a", undo=True)

    assert reasons(world)[0]
    assert (world.core.state.outages.spans, world.core.state.outages.symptoms) == ({}, {})
    assert world.core.view(world.now_s).state(world.now_s).failed_devices == {0}


@pytest.mark.parametrize(
    "name", ["b", "b/0", "a/2", "a/-1", "a/x", "a/", "/0", "a/0/0", "a/" + "9" * 30]
)
def test_unknown_devices_cannot_be_drained(world, name):
    with pytest.raises(UnknownJobError, match=r"has no device|there is no node"):
        drain(world, name)


def test_a_node_may_have_a_slash_in_its_name():
    world = World()
    report(world, node="rack/0", ids=("",))
    assert drain(world, "rack/0") == ["NodeDrained"]
    assert drain(world, "rack/0/0") == ["DeviceDrained"]


def test_a_replaced_gpu_is_in_service_and_the_failed_one_stays_withdrawn(world):
    report(world, (1, 0, XID_79))
    assert report(world, ids=("GPU-7", "GPU-1")) == ["NodeJoined"]
    assert reasons(world) == ["", ""]
    assert not world.core.commands("a").withdrawn_devices

    report(world, node="b", ids=("GPU-0",))  # it is put into another node
    assert reasons(world, "b") == [f"it failed: {XID_79[2]}"]
    assert world.core.view(world.now_s).state(world.now_s).failed_devices == {2}


def test_a_source_that_reported_a_failure_can_end_it(world):
    report(world, (1, 0, LOST_BY_DRIVER))
    failed_s = world.now_s
    world.now_s += 10
    assert report(world, (2, 0, LISTED))[0] == "HealthReported"
    assert reasons(world) == ["", ""]
    assert world.core.state.outages.spans == {"GPU-0": [[failed_s, world.now_s]]}

    # But not the failure that another source has reported.
    report(world, (3, 0, XID_79), (4, 0, LOST_BY_DRIVER), (5, 0, LISTED))
    assert reasons(world)[0] == f"it failed: {XID_79[2]}"


def test_a_withdrawn_device_stays_withdrawn_when_its_node_is_lost_and_joins_again(world):
    report(world, (1, 0, XID_79))
    failed_s = world.now_s
    lose_all(world)
    lost_s = world.now_s
    world.now_s += 50
    report(world)

    assert reasons(world)[0]
    assert world.core.state.outages.spans == {
        "GPU-0": [[failed_s, None]], "GPU-1": [[lost_s, world.now_s]],
    }  # fmt: skip


def test_a_device_returned_while_its_node_is_lost_is_down_until_it_joins(world):
    report(world, (1, 0, XID_79))
    lose_all(world)
    drain(world, "a/0", undo=True)
    assert world.core.state.outages.is_down("GPU-0")
    report(world)
    assert not world.core.state.outages.is_down("GPU-0")


def test_everything_is_replayed_from_the_journal_and_from_a_snapshot(world):
    report(world, (1, 0, XID_79), (2, 1, XID_63), (3, 1, XID_13))
    drain(world, "a/1")
    for state in replayed(world):
        assert state.health == world.core.state.health
        assert state.outages == world.core.state.outages
        assert state.nodes == world.core.state.nodes
    withdrawn = reasons(world)
    world.core = world.begin()

    assert reasons(world) == withdrawn
    report(world)
    assert world.core.view(world.now_s).state(world.now_s).failed_devices == {0, 1}
    drain(world, "a/0", undo=True)
    drain(world, "a/1", undo=True)
    for state in replayed(world):
        assert state.health == world.core.state.health
        assert state.outages == world.core.state.outages


def test_snapshots_of_earlier_versions_are_read():
    world = World()
    report(world)
    lose_all(world)
    rows = json.loads(json.dumps(world.core.state.take_changes()))
    for name in ("signals_id", "signals_number"):
        del rows["node a"][name]
    for device in DEVICES:
        del rows[f"outages {device}"]["symptoms"]

    state = ReplayedState.from_rows(rows)
    assert state.nodes == world.core.state.nodes
    assert state.outages == world.core.state.outages


def test_a_task_that_fails_on_a_failed_device_is_no_failure_of_its_job(world):
    hit = device_of(world, "one")
    failure = running(world, "one", phase=pb.TASK_ENDED, exit=pb.Exit(description="status 1"))
    tasks = [failure, running(world, "two")]

    assert report(world, (1, hit, XID_79), tasks=tasks) == ["HealthReported", "Requeued"]
    job = world.core.state.jobs["one"]
    assert (job.stage, job.failures) == (Stage.WAITING, 0)
    assert job.reason == f"device {hit} of its node: it failed: {XID_79[2]}"
    # On a healthy device it is one.
    failure = running(world, "two", phase=pb.TASK_ENDED, exit=pb.Exit(description="status 1"))
    report(world, tasks=[failure])
    assert world.stage("two") is Stage.FAILED


def test_a_task_that_its_agent_moved_to_a_withdrawn_device_leaves_it(world):
    hit = device_of(world, "two")
    drain(world, f"a/{hit}")
    allocation = pb.Allocation(device=hit, compute_milli=1000, memory_bytes=V100[1])
    tasks = [task("one", allocations=[allocation]), running(world, "two")]

    assert report(world, tasks=tasks) == ["Stopping"]
    assert world.stage("one") is Stage.LEAVING
    assert report(world, tasks=tasks) == []


def elastic_world(**sizes):
    world = ElasticWorld(Elastic(hold_s=0.0))
    report(world)
    report(world, node="b", ids=("GPU-2",))
    world.submit("job", model="300", **sizes)
    world.decide()
    report(world, tasks=[task("job/m1"), task("job/m2")])
    return world, world.core.state.jobs["job"]


def test_an_elastic_job_continues_without_the_worker_of_a_failed_device():
    world, job = elastic_world(gpus=3, min_gpus=2, max_gpus=3)
    assert len(job.members) == 3
    tasks = [task("job/m1"), task("job/m2")]

    assert report(world, (1, 1, XID_79), tasks=tasks) == ["HealthReported", "Resized"]
    assert [(one.node, one.device) for one in job.members] == [("a", 0), ("b", 0)]
    assert job.sizes[-1][2] == f"device a/1 is withdrawn: it failed: {XID_79[2]}"
    assert world.decide() == []


def test_an_elastic_job_ends_if_too_few_devices_are_left():
    world, job = elastic_world(gpus=3, min_gpus=3, max_gpus=4)
    tasks = [task("job/m1"), task("job/m2")]

    assert report(world, (1, 1, XID_79), tasks=tasks) == ["HealthReported", "Stopping"]
    assert job.stage is Stage.LEAVING


def test_a_worker_that_fails_on_a_failed_device_does_not_count_as_a_failure():
    world, job = elastic_world(gpus=3, min_gpus=1, max_gpus=3)
    allocation = pb.Allocation(device=1, compute_milli=1000, memory_bytes=V100[1])
    failed = task(
        "job/m2", phase=pb.TASK_ENDED, allocations=[allocation], exit=pb.Exit(description="9")
    )
    report(world, (1, 1, XID_79), tasks=[task("job/m1"), failed])

    assert job.member_failures == 0
    assert [(one.node, one.device) for one in job.members] == [("a", 0), ("b", 0)]


def test_policies_see_a_failed_device_as_in_the_simulator():
    world = World()
    report(world)
    view = world.core.view(0.0)
    simulated = make_ledger(view.cluster, world.policy, view.forecasts, device_ids=DEVICES)

    def agree():
        live = world.core.view(world.now_s).state(world.now_s)
        assert seen(live) == seen(State(simulated, world.now_s, Progress()))

    world.now_s = 100.0
    report(world, (1, 1, XID_79))
    simulated.fail(0, world.now_s, 1)
    agree()
    world.now_s = 300.0
    report(world)
    drain(world, "a/1", undo=True)
    simulated.repair(0, world.now_s, 1)
    agree()


def seen(state):
    """Return what policies see of the failures of devices."""
    found = OutageHazards(MODEL).hazards(state, DAY_S, interval=False)
    return {
        "failed": state.failed_devices,
        "down": [state.is_down(device) for device in range(state.cluster.devices)],
        "idle": state.idle_count,
        "free": state.capacity().compute_milli.tolist(),
        "outages": dict(state.outages.outages),
        "events": state.outages.events,
        "hazards": found.probability.tolist(),
    }
