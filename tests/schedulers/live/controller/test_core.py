"""Tests of the controller's core: records that follow from requests and reports."""

from __future__ import annotations

import math

import pytest

from presage.errors import InvalidJobError, UnknownJobError
from presage.schedulers.core.action import Preempt
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.controller_core import END_S, LOST_NODE_RETENTION_S, Core
from presage.schedulers.live.controller.explanations.explain import (
    find_candidates,
    queue_position,
    queue_positions,
    summarize_job,
)
from presage.schedulers.live.controller.journal.records import (
    LeaseChanged,
    Placed,
    record_from_json,
    record_to_json,
)
from presage.schedulers.live.controller.replayed_state import ReplayedState, Stage
from presage.schedulers.live.controller.server.cluster_service import recent_failures, sort_jobs
from presage.schedulers.live.controller.status_messages import job_status, node_status
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import read_job, read_predictions, write_job
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.codec import wire_values as serving_wire
from tests.serving.conftest import make_job

GIB = 2**30
LEASE_S, GRACE_S = 20.0, 5.0
V100, K80 = ("v100", 16 * GIB), ("k80", 12 * GIB)


class FakeForecaster:
    """Forecaster of jobs whose model is their milli-devices; a k80 takes twice the time."""

    def predictions(self, asked):
        return [self._of(job, kind) for job, kind in asked]

    def slowdowns(self, asked):
        return [[1.0] * len(jobs) for _, jobs in asked]

    def _of(self, job, kind):
        if not job.model:
            return None
        runtime_s = 100.0 if kind == "v100" else 200.0
        memory_bytes = 40 * GIB if job.model == "301" else 4 * GIB
        high_s, release_id = 1.2 * runtime_s, f"of {kind}"
        return RuntimePrediction(
            runtime_s, int(job.model), memory_bytes, high_s=high_s, release_id=release_id
        )


class World:
    """Core whose records are applied at once, and stored in ``rows``."""

    def __init__(self, policy=None, max_ended_jobs=1000, forecaster=None):
        self.now_s = 0.0
        self.max_ended_jobs = max_ended_jobs
        self.forecaster = forecaster or FakeForecaster()
        self.policy = policy or Sharing().controller_policy()
        self.rows = []
        self.known = {}
        self.core = self.begin()

    def begin(self):
        state = ReplayedState()
        for row in self.rows:
            state.apply(record_from_json(row))
        return Core(
            state, self.policy, self._forecasts, now_s=self.now_s, lease_s=LEASE_S, suspect_s=10.0,
            max_ended_jobs=self.max_ended_jobs,
        )  # fmt: skip

    def _forecasts(self, cluster, now_s):
        key = tuple(node.name for node in cluster.nodes)
        if key not in self.known:
            self.known[key] = Forecasts(self.forecaster, cluster)
        return self.known[key]

    def write(self, records):
        self.rows += [record_to_json(record) for record in records]
        self.core.apply(records)
        return [type(record).__name__ for record in records]

    def submit(self, *names, **values):
        jobs = [submitted(name, **values) for name in names]
        records, known = self.core.submit(jobs, self.now_s, self.now_s)
        self.write(records)
        return known

    def report(
        self, node, devices=(V100,), tasks=(), orders=0, agent_id="one", problem="", cluster_id=""
    ):
        message = pb.NodeReport(
            node=node, agent_id=agent_id, number=1, commands_version=orders, tasks=tasks,
            problem=problem, cluster_id=cluster_id,
            devices=[pb.Device(kind=kind, memory_bytes=memory) for kind, memory in devices],
        )  # fmt: skip
        assert not self.core.rejection_reason(message)
        wrote = self.write(self.core.report(message, self.now_s, self.now_s))
        self.core.note_report(message, self.now_s)
        return wrote

    def decide(self):
        return self.write(self.core.decide(self.now_s, self.now_s))

    def nodes_with(self, name):
        """Return the nodes whose commands contain a job."""
        return [
            node
            for node in self.core.nodes
            if any(one.job.job_id == name for one in self.core.commands(node).tasks)
        ]

    def stage(self, name):
        return self.core.state.jobs[name].stage


def submitted(name, model="", retries=0, **values):
    job = Job(name, 0.0, model=model, **values)
    return SubmittedJob(job, ("train", name), grace_s=GRACE_S, retries=retries)


def task(name, attempt=1, phase=pb.TASK_RUNNING, ran_s=1.0, **values):
    return pb.Task(job_id=name, attempt=attempt, phase=phase, ran_s=ran_s, **values)


def ended(name, attempt=1, saved=0.0, reason="", **how):
    over = pb.Exit(**how)
    return task(name, attempt, pb.TASK_ENDED, 10.0, exit=over, saved=saved, reason=reason)


def test_c7_commands_contain_the_task_and_its_predictions_for_every_kind():
    world = World()
    world.report("a", [V100])
    world.report("b", [K80], agent_id="two")
    world.submit("job", model="300")
    assert world.decide() == ["Placed"]

    (order,) = world.core.commands("a").tasks
    assert order.job.command == ["train", "job"]
    assert [(g.device, g.compute_milli, g.memory_bytes) for g in order.allocations] == [
        (0, 300, 4 * GIB)
    ]
    predictions = read_predictions(order.predictions)
    assert {kind: one.runtime_s for kind, one in predictions.items()} == {
        "v100": 100.0,
        "k80": 200.0,
    }
    assert {kind: one.compute_milli for kind, one in predictions.items()} == {
        "v100": 300,
        "k80": 300,
    }
    assert predictions["v100"].slo_s == 120.0
    assert not world.core.commands("b").tasks


def test_a_command_names_the_release_of_each_forecast_also_after_a_restart():
    world = World()
    world.report("a", [V100])
    world.report("b", [K80], agent_id="two")
    world.submit("job", model="300")
    world.decide()
    world.core = world.begin()

    (order,) = world.core.commands("a").tasks
    releases = {prediction.kind: prediction.release_id for prediction in order.predictions}
    assert releases == {"v100": "of v100", "k80": "of k80"}


def test_a_resubmitted_job_is_known_and_another_with_its_id_is_rejected():
    world = World()
    assert world.submit("job", model="300") == []
    assert world.submit("job", model="300") == ["job"]
    with pytest.raises(InvalidJobError, match="job 'job': another job has the same id"):
        world.submit("job", model="400")
    with pytest.raises(InvalidJobError, match="job 'twice': another job has the same id"):
        world.submit("twice", "twice")


def test_a_restarted_controller_uses_the_journal_and_new_reports():
    world = World()
    world.report("a")
    world.submit("runs", "waits", model="700")
    world.decide()
    world.report("a", tasks=[task("runs")])
    world.core = world.begin()

    assert world.stage("runs") is Stage.RUNNING
    assert world.decide() == []  # its node has not reported and gets no commands
    world.report("a", tasks=[task("runs")])
    assert world.decide() == []
    world.report("a", tasks=[ended("runs", finished=True)])
    assert world.stage("runs") is Stage.FINISHED
    assert world.decide() == ["Placed"]
    assert world.stage("waits") is Stage.PLACED


def test_a_latency_sensitive_job_is_placed_while_the_preempted_job_ends():
    world = World(Sharing(least_milli=1000).controller_policy())
    world.report("a")
    world.submit("victim", model="800")
    world.decide()
    world.report("a", tasks=[task("victim")])
    world.submit("urgent", model="800", latency_sensitive=True)
    assert sorted(world.decide()) == ["Placed", "Stopping"]

    orders = {one.job.job_id: one for one in world.core.commands("a").tasks}
    assert orders["victim"].end_reason == "a job with priority over it needs its devices"
    assert not orders["victim"].discard
    assert world.decide() == []  # it has not ended yet and is not started elsewhere
    left = ended("victim", saved=0.4, requested=True, reason="it made room")
    world.report("a", tasks=[left, task("urgent")])
    assert world.stage("victim") is Stage.WAITING
    assert world.core.state.jobs["victim"].saved == 0.4


def test_commands_for_an_ending_job_omit_its_command_and_features():
    world = World()
    world.report("a")
    job = SubmittedJob(
        Job("job", 0.0, features=make_job("what it is")), ("train", "x" * 1000),
        environment={"LONG": "y" * 1000}, grace_s=GRACE_S,
    )  # fmt: skip
    world.write(world.core.submit([job], 0.0, 0.0)[0])
    world.decide()
    (before,) = world.core.commands("a").tasks
    world.write(world.core.cancel(["job"], 0.0, 0.0))

    (order,) = world.core.commands("a").tasks
    assert order.end_reason == "it was cancelled"
    assert order.ByteSize() < 200 < 2000 < before.ByteSize()
    assert read_job(order.job, 0.0, "job").grace_s == GRACE_S
    assert order.submission_id == before.submission_id


def test_capacity_freed_for_a_latency_sensitive_job_is_not_given_to_others():
    world = World()
    world.report("a")
    world.submit("best effort", model="476")
    world.submit("urgent", model="452", latency_sensitive=True)
    world.decide()

    def has(milli):
        return [pb.Allocation(device=0, compute_milli=milli, memory_bytes=4 * GIB)]

    # The agent allocated the full device to one job while the other saves: 1,100 milli-devices.
    urgent = task("urgent", allocations=has(1000))
    leaving = task("best effort", phase=pb.TASK_ENDING, allocations=has(100))
    world.report("a", tasks=[leaving, urgent])
    assert world.decide() == []
    gone = ended("best effort", requested=True, reason="too little is left")
    assert world.report("a", tasks=[gone, urgent]) == ["Requeued"]
    assert world.decide() == []
    assert world.stage("best effort") is Stage.WAITING


def test_a_silent_node_is_lost_once_all_of_its_tasks_have_ended():
    world = World()
    world.report("a")
    world.submit("job", model="700")
    world.decide()
    world.report("a", tasks=[task("job", saved=0.3)])

    world.now_s = LEASE_S + GRACE_S + END_S - 0.1
    assert world.core.find_lost(world.now_s, world.now_s) == []
    world.report("b", agent_id="two")
    assert world.decide() == []  # it may still run there

    world.now_s += 0.2
    assert world.write(world.core.find_lost(world.now_s, world.now_s)) == ["NodeLost", "Requeued"]
    world.report("b", agent_id="two")
    assert world.decide() == ["Placed"]
    job = world.core.state.jobs["job"]
    assert (job.node, job.attempt, job.saved) == ("b", 2, 0.3)
    # The node returns: its report of the first attempt is outdated and can be forgotten.
    assert world.report("a", tasks=[ended("job", finished=True)]) == ["NodeJoined"]
    assert world.stage("job") is Stage.PLACED
    assert [one.attempt for one in world.core.commands("a").forget] == [1]


def test_a_node_that_returns_is_not_lost_again_before_its_report_is_noted():
    world = World()
    world.report("a")
    world.now_s = LEASE_S + GRACE_S + END_S
    assert world.write(world.core.find_lost(world.now_s, world.now_s)) == ["NodeLost"]
    report = pb.NodeReport(
        node="a", agent_id="one", devices=[pb.Device(kind="k80", memory_bytes=1)]
    )

    # Writing the records takes a while, in which the controller looks for lost nodes.
    assert world.write(world.core.report(report, world.now_s, world.now_s)) == ["NodeJoined"]
    assert world.core.find_lost(world.now_s, world.now_s) == []


def test_a_second_agent_with_a_node_name_is_rejected_until_the_first_is_lost():
    world = World()
    world.report("a")
    world.submit("job", model="700")
    world.decide()
    other = pb.NodeReport(node="a", agent_id="two", devices=[pb.Device(kind="k80", memory_bytes=1)])
    world.now_s = LEASE_S + GRACE_S + END_S  # not enough while its job is assigned
    assert "another agent has the node name 'a'" in world.core.rejection_reason(other)
    assert world.write(world.core.find_lost(world.now_s, world.now_s)) == ["NodeLost", "Requeued"]
    assert not world.core.rejection_reason(other)


def test_an_agent_with_a_conflicting_memory_size_of_a_kind_is_rejected():
    world = World()
    kind, memory_bytes = V100
    world.report("a")

    def refused(node, *of_devices, kind=kind):
        devices = [pb.Device(kind=kind, memory_bytes=one) for one in of_devices]
        return world.core.rejection_reason(
            pb.NodeReport(node=node, agent_id="one", devices=devices)
        )

    assert not refused("b", memory_bytes)
    assert f"those of 'a' {memory_bytes}; set the same size with --memory-gib" in refused("b", 1)
    assert "those of 'b' 1;" in refused("b", 1, 2, kind="k80")
    assert not refused("a", 1)  # no other node has this kind


def test_a_drained_node_stays_drained_while_disconnected():
    world = World()
    world.report("a")
    world.write(world.core.drain("a", undo=False, evict=False, now_s=world.now_s))
    world.now_s += LEASE_S + GRACE_S + END_S
    world.write(world.core.find_lost(world.now_s, world.now_s))
    world.now_s += 2 * LOST_NODE_RETENTION_S
    world.write(world.core.prune(world.now_s))
    world.report("a")
    world.submit("job", model="700")
    assert world.decide() == []


def test_a_report_of_a_drained_node_triggers_no_decision():
    world = World()
    world.report("a")
    world.write(world.core.drain("a", undo=False, evict=False, now_s=world.now_s))
    world.decide()
    report = pb.NodeReport(
        node="a", agent_id="one", devices=[pb.Device(kind=V100[0], memory_bytes=V100[1])]
    )
    assert not world.core.note_report(report, world.now_s)


def test_a_job_missing_from_a_report_after_it_was_received_is_requeued():
    world = World()
    world.report("a")
    world.submit("job", model="700")
    world.decide()
    version = world.core.commands("a").version
    assert world.report("a", orders=version - 1) == []  # the command was not received
    assert world.report("a", orders=version) == ["Requeued"]


def test_failed_jobs_are_retried_and_out_of_memory_jobs_get_exclusive_devices():
    world = World()
    world.report("a")
    world.submit("fails", model="300", retries=1)
    world.submit("grows", model="300")
    world.decide()
    world.report(
        "a", tasks=[ended("fails", description="status 1"), ended("grows", out_of_memory=True)]
    )
    assert (world.stage("fails"), world.stage("grows")) == (Stage.WAITING, Stage.WAITING)

    world.now_s = 100.0
    world.report("a", tasks=[])
    world.decide()
    (order,) = (one for one in world.core.commands("a").tasks if one.job.job_id == "fails")
    assert not order.exclusive
    world.report("a", tasks=[ended("fails", 2, description="status 1")])
    assert world.stage("fails") is Stage.FAILED
    world.decide()
    (order,) = (one for one in world.core.commands("a").tasks if one.job.job_id == "grows")
    assert order.exclusive
    assert order.allocations[0].compute_milli == 1000
    world.report("a", tasks=[ended("grows", 2, out_of_memory=True)])
    assert world.stage("grows") is Stage.FAILED


def verdicts(world, name):
    rows = find_candidates(world.core, world.core.state.jobs[name], world.now_s)
    return {(row.node, row.device): row.verdict for row in rows}


def world_with_full_v100():
    """Return a world where a job exceeded an exclusive K80, and the V100 is occupied."""
    world = World()
    world.report("b", agent_id="two")
    world.submit("there before", model="900", kinds=("v100",))
    world.decide()
    exceed_exclusive(world)
    return world


def exceed_exclusive(world):
    """Run a job out of a K80's memory, first co-located and then exclusive."""
    world.report("a", [K80])
    world.submit("grows", model="300")
    world.decide()
    for attempt in (1, 2):
        allocation = pb.Allocation(device=0, compute_milli=1000, memory_bytes=12 * GIB)
        over = ended("grows", attempt, out_of_memory=True)
        over.allocations.append(allocation)
        world.report("a", [K80], tasks=[over])
        world.report("a", [K80])
        world.decide()


def test_a_job_that_exceeded_an_exclusive_device_gets_only_larger_devices():
    world = world_with_full_v100()
    assert world.stage("grows") is Stage.WAITING  # although the K80 has free capacity

    assert verdicts(world, "grows") == {("b", 0): "too little free compute"}
    world.report("b", tasks=[ended("there before", finished=True)], agent_id="two")
    world.decide()
    (order,) = world.core.commands("b").tasks
    assert (order.job.job_id, order.job.kinds, order.exclusive) == ("grows", ["v100"], True)
    assert world.begin().state.jobs["grows"].small_bytes == 12 * GIB


def test_a_job_that_exceeded_the_largest_device_fails():
    world = World()
    exceed_exclusive(world)
    assert world.stage("grows") is Stage.FAILED


def test_a_gang_that_ran_out_of_memory_needs_enough_larger_devices_on_one_node():
    world = World()
    world.report("a", [V100, V100])
    world.report("b", [("h100", 80 * GIB)], agent_id="two")
    world.submit("gang", gpus=2, model="300")
    for attempt in (1, 2):
        world.decide()
        out = ended("gang", attempt, out_of_memory=True)
        out.allocations.extend(
            [pb.Allocation(device=i, compute_milli=1000, memory_bytes=1) for i in (0, 1)]
        )
        world.report("a", [V100, V100], tasks=[out])

    assert world.stage("gang") is Stage.FAILED


def test_a_job_whose_larger_devices_have_left_waits_with_a_reason():
    world = world_with_full_v100()
    world.write(world.core.drain("b", undo=False, evict=False, now_s=world.now_s))
    why = summarize_job(world.core, world.core.state.jobs["grows"], 0, world.now_s)
    assert why == (
        "it waits for other nodes: it ran out of 12 GiB of a device by itself; no larger one is "
        "available"
    )


def test_n3_elapsed_time_counts_from_the_first_start_across_attempts():
    world = World()
    world.report("a")
    world.submit("job", model="700", latency_sensitive=True)
    world.decide()
    world.now_s = 10.0
    world.report("a", tasks=[task("job", ran_s=10.0)])
    assert world.core.commands("a").tasks[0].elapsed_s == 0.0

    world.now_s = 1000.0
    world.write(world.core.find_lost(world.now_s, world.now_s))
    world.report("b", agent_id="two")
    assert world.decide() == ["Placed"]
    assert world.core.commands("b").tasks[0].elapsed_s == 1000.0


def test_c2_commands_exclude_kinds_that_are_too_small():
    world = World()
    world.report("a", [K80, ("h100", 80 * GIB)])
    world.submit("large", model="300")
    world.submit("huge", model="301")
    world.decide()

    orders = {one.job.job_id: list(one.job.kinds) for one in world.core.commands("a").tasks}
    assert orders == {"large": [], "huge": ["h100"]}
    assert {prediction.kind for prediction in world.core.commands("a").tasks[1].predictions} == {
        "k80",
        "h100",
    }


@pytest.mark.parametrize("delay_s", [0.0, 100.0])  # later: the controller learns of it with a delay
@pytest.mark.parametrize(("ran_s", "late"), [(119.0, False), (121.0, True)])
def test_a_finished_job_shows_whether_it_violated_its_slo(ran_s, late, delay_s):
    world = World()
    world.report("a")
    world.submit("job", model="300", latency_sensitive=True)
    world.decide()
    world.now_s = 1.0
    world.report("a", tasks=[task("job", ran_s=1.0)])
    world.now_s = ran_s + delay_s
    over = ended("job", finished=True)
    over.ran_s = ran_s
    world.report("a", tasks=[over])

    status = job_status(world.core, world.core.state.jobs["job"], world.now_s)
    assert (status.slo_violated, status.elapsed_s, status.ended_unix_s) == (late, ran_s, ran_s)


def test_the_slo_of_a_finished_job_is_that_of_its_kind_of_device():
    world = World()
    world.report("a", [V100, K80])  # of which a k80 is promised 240 s, a v100 120
    world.submit("job", model="300", latency_sensitive=True)
    world.decide()
    world.report("a", [V100, K80], tasks=[task("job", ran_s=0.001)])
    over = ended("job", finished=True)
    over.ran_s = world.now_s = 200.0
    over.allocations.append(pb.Allocation(device=1, compute_milli=300, memory_bytes=4 * GIB))
    world.report("a", [V100, K80], tasks=[over])

    status = job_status(world.core, world.core.state.jobs["job"], world.now_s)
    assert [allocation.device for allocation in status.allocations] == [1]
    assert not status.slo_violated


def test_a_node_that_cannot_start_jobs_gets_none():
    world = World()
    world.report("a", problem="its disk is full")
    world.submit("job", model="300")
    assert world.decide() == []
    assert (
        world.core.unavailable_reason("a", world.now_s)
        == "its agent can start no job: its disk is full"
    )
    world.report("a")
    assert world.decide() == ["Placed"]


def test_a_node_with_tasks_of_another_cluster_gets_no_jobs():
    world = World()
    world.core.state.cluster_id = "ours"
    world.report("a", cluster_id="theirs", tasks=[task("of-theirs")])
    world.submit("job", model="300")
    assert world.decide() == []
    assert node_status(world.core, "a", 0.0).reason == (
        "its agent has tasks of another cluster, theirs, that have not ended"
    )
    for obeyed in ("", "ours"):  # its tasks have ended; it belongs to this cluster
        world.report("a", cluster_id=obeyed)
        assert not world.core.unavailable_reason("a", 0.0)
    assert world.decide() == ["Placed"]

    world.report("a", cluster_id="theirs")  # it belonged to another controller meanwhile
    summary = summarize_job(world.core, world.core.state.jobs["job"], 0, world.now_s)
    assert "attempt 1; its agent has tasks of another cluster, theirs," in summary


def test_a_cancelled_job_ends_without_a_checkpoint_and_is_not_requeued():
    world = World()
    world.report("a")
    world.submit("runs", "waits", model="700")
    world.decide()
    assert world.write(world.core.cancel(["runs", "waits"], 1.0, 1.0)) == ["Stopping", "Ended"]
    (order,) = world.core.commands("a").tasks
    assert order.end_reason
    assert order.discard
    world.report("a", tasks=[ended("runs", requested=True)])
    assert world.stage("runs") is Stage.CANCELLED
    assert world.core.cancel(["runs"], 2.0, 2.0) == []
    with pytest.raises(UnknownJobError, match="no job 'missing'"):
        world.core.cancel(["missing"], 2.0, 2.0)


def test_a_decision_that_could_not_be_written_has_no_effect():
    world = World()
    world.report("a")
    world.submit("job", model="700")
    assert len(world.core.decide(1.0, 1.0)) == 1
    world.core.discard_decision()

    assert world.stage("job") is Stage.WAITING
    assert world.decide() == ["Placed"]


def test_a_snapshot_and_later_entries_give_the_same_state():
    world = World()
    world.report("a")
    world.submit("one", "two", model="400")
    world.decide()
    rows = world.core.state.take_changes()
    world.report("a", tasks=[task("one"), ended("two", finished=True)])
    rows |= world.core.state.take_changes()

    assert ReplayedState.from_rows(rows) == world.begin().state


def test_the_last_ended_jobs_are_retained():
    world = World(max_ended_jobs=2)
    world.report("a")
    world.submit("one", "two", "three", "waiting", model="200")
    world.decide()
    names = ("three", "one", "two")
    for number, name in enumerate(names):
        world.now_s = float(number)
        later = [task(other) for other in (*names[number + 1 :], "waiting")]
        world.report("a", tasks=[ended(name, finished=True), *later])
    rows = world.core.state.take_changes()
    assert world.write(world.core.prune(world.now_s)) == ["Pruned"]
    assert not world.core.prune(world.now_s)

    assert set(world.core.state.jobs) == {"one", "two", "waiting"}
    with pytest.raises(UnknownJobError, match="ended long ago"):
        world.core.job("three")
    rows |= world.core.state.take_changes()
    assert rows["job three"] is None
    kept = {key: row for key, row in rows.items() if row is not None}
    assert ReplayedState.from_rows(kept) == world.begin().state == world.core.state


def test_tasks_of_a_pruned_job_do_not_match_a_new_job_with_its_id():
    world = World(max_ended_jobs=0)
    world.report("a")
    world.submit("job", model="900")
    world.decide()
    world.report("a", tasks=[ended("job", finished=True)])
    world.write(world.core.prune(0.0))
    assert world.submit("job", model="900") == []  # it is a new one
    world.decide()

    assert [one.attempt for one in world.core.commands("a").tasks] == [2]
    world.report("a", tasks=[ended("job", attempt=1, finished=True)])  # a node that was away
    assert world.stage("job") is Stage.PLACED
    assert world.core.state.jobs["job"].starts == 1


def test_a_node_with_two_kinds_of_devices_offers_both():
    world = World()
    world.report("a", [V100, K80])
    world.submit("large", model="900")
    world.submit("for k80", model="900", kinds=("k80",))
    world.decide()

    found = {one.job.job_id: one.allocations[0].device for one in world.core.commands("a").tasks}
    assert found == {"large": 0, "for k80": 1}


def test_features_are_equal_only_if_their_content_is():
    def named(name, batch_size, iterations=10):
        features = serving_wire.write_job(make_job(batch_size=batch_size))
        features.job_id, features.iterations = name, iterations
        row = pb.Job(job_id="x", command=["train"], features=features)
        return read_job(row, 0.0, "job").job.workload_key

    assert named("model", 4) != named("model", 8)
    assert named("model", 4) == named("other", 4) == named("model", 4, iterations=99)
    features = serving_wire.write_job(make_job())
    taken = read_job(pb.Job(job_id="x", command=["train"], features=features), 0.0, "job")
    assert read_job(write_job(taken), 0.0, "job").job.workload_key == taken.job.workload_key


def test_a_preempted_job_restarts_only_after_its_node_has_ended_it():
    world = World(ShortestRemainingFirst())
    world.report("a", [V100])
    world.report("b", [K80], agent_id="two")
    world.submit("long", model="1000")
    world.decide()
    world.report("a", tasks=[task("long", allocations=whole(V100))])
    world.submit("urgent", model="1000", latency_sensitive=True, kinds=("v100",))
    world.decide()

    assert world.nodes_with("long") == ["a"]
    world.report("a", tasks=[ended("long", requested=True)])
    world.decide()
    assert world.nodes_with("long") == ["b"]


def whole(device):
    return [pb.Allocation(device=0, compute_milli=1000, memory_bytes=device[1])]


def test_a_job_too_large_for_all_nodes_waits_without_blocking_others():
    world = World(BestFit())
    world.report("a")
    world.report("b", agent_id="two")
    world.submit("wide", gpus=2)
    world.submit("narrow")

    assert world.decide() == ["Placed"]
    assert not world.core.problem
    impossible = world.core.view(world.now_s).unschedulable
    assert impossible == {"wide": "it needs 2 devices of one node; the largest has 1"}
    world.report("c", [V100, V100], agent_id="three")
    assert world.decide() == ["Placed"]


def test_a_node_that_returns_with_fewer_devices_retains_the_remaining_jobs():
    world = World()
    world.report("a", [V100, V100])
    world.submit("one", "two", model="900")
    world.decide()
    had = {one.job.job_id: one.allocations for one in world.core.commands("a").tasks}
    world.report("a", [V100, V100], tasks=[task(name, allocations=had[name]) for name in had])
    second = next(name for name, allocations in had.items() if allocations[0].device == 1)
    gone = ended(second, requested=True, reason="the node has not its devices any more")
    gone.allocations.extend(had[second])
    first = next(name for name in had if name != second)
    world.report("a", [V100], tasks=[gone, task(first, allocations=had[first])])

    assert world.decide() == []
    assert world.stage(second) is Stage.WAITING


def test_a_node_is_lost_only_after_a_longer_lease_of_an_earlier_controller():
    world = World()
    world.write([LeaseChanged(600.0, 0.0)])
    world.report("a")
    world.report("b", agent_id="two")
    world.submit("job", model="900")
    world.decide()
    world.core = world.begin()  # with a lease of 20 s
    world.report("b", agent_id="two", orders=0)
    assert world.core.commands("b").lease_s == LEASE_S
    world.report("b", agent_id="two", orders=world.core.commands("b").version)
    world.now_s = LEASE_S + GRACE_S + END_S + 1  # a has not reported to this controller

    assert world.write(world.core.find_lost(world.now_s, 0.0)) == ["NodeLost"]  # only b
    world.now_s = 600.0 + GRACE_S + END_S + 1
    assert "NodeLost" in world.write(world.core.find_lost(world.now_s, 0.0))
    assert world.write(world.core.find_lost(world.now_s, 0.0)) == ["LeaseChanged"]
    assert world.core.state.lease_s == LEASE_S


def test_run_time_in_the_policy_view_continues_across_reports():
    world = World(ShortestRemainingFirst())
    world.report("a", [V100, V100])
    world.submit("one", "two", model="1000")
    world.decide()
    tasks = [
        task(one.job.job_id, allocations=one.allocations) for one in world.core.commands("a").tasks
    ]
    world.report("a", [V100, V100], tasks=tasks)
    world.now_s = 90.0
    world.report("a", [V100, V100], tasks=[tasks[0], ended("two", finished=True)])

    status = world.core.view(world.now_s).ledger.status("one")
    assert status.attained_at(90.0) == pytest.approx(90.0, abs=2.0)


def test_nodes_that_were_lost_long_ago_are_pruned():
    world = World()
    world.report("a")
    world.now_s = LEASE_S + END_S + 1
    world.write(world.core.find_lost(world.now_s, 0.0))
    assert not world.core.prune(world.now_s + LOST_NODE_RETENTION_S)
    assert world.write(world.core.prune(world.now_s + LOST_NODE_RETENTION_S + 1)) == ["Pruned"]
    assert not world.core.state.nodes
    assert world.report("a") == ["NodeJoined"]


def test_jobs_are_listed_running_first_then_waiting_then_ended():
    world = World()
    world.report("a")
    world.submit("old", "done", model="300")
    world.decide()
    world.report("a", tasks=[ended("old", finished=True), task("done")])
    world.report("a", tasks=[ended("done", finished=True)])
    world.submit("first", "second", "runs", "urgent", model="900")
    world.submit("ahead", model="900", latency_sensitive=True)
    world.decide()
    positions = queue_positions(world.core.view(0.0))

    def names(*, ended):
        return [job.job_id for job in sort_jobs(world.core.state, positions, with_ended=ended)]

    assert names(ended=False)[0] == "ahead"
    assert names(ended=False)[1:] == ["first", "second", "runs", "urgent"]
    assert names(ended=True)[-2:] == ["done", "old"]
    view = world.core.view(0.0)
    assert [queue_position(view, name) for name in ("first", "urgent", "ahead")] == [1, 4, 0]


def test_recently_failed_jobs_are_listed_newest_first():
    world = World()
    world.report("a", [V100] * 4)
    for name in ("early", "fine", "late", "last"):
        world.submit(name, model="300")
        world.decide()
        world.now_s += 100.0
        over = ended(
            name, **({"finished": True} if name == "fine" else {"description": "status 1"})
        )
        world.report("a", [V100] * 4, tasks=[over])

    def failed(seconds):
        return [job.job_id for job in recent_failures(world.core.state, world.now_s, seconds)]

    assert failed(1000.0) == ["last", "late", "early"]
    assert failed(250.0) == ["last", "late"]
    assert failed(0.0) == failed(math.nan) == []


def test_the_summary_of_a_waiting_job_names_what_it_waits_for():
    def why(name):
        return summarize_job(world.core, world.core.state.jobs[name], 0, world.now_s)

    world = World(Sharing(overcommit=2.0, home_s=60.0).controller_policy())
    world.submit("moved", model="900")
    assert why("moved") == "it waits: no node has joined"
    world.report("a")
    world.report("b", agent_id="two")
    world.decide()
    assert why("moved").startswith("it is assigned to node a with 45 %")
    gone = ended("moved", requested=True, reason="too little is left")
    gone.allocations.extend([pb.Allocation(device=0, compute_milli=450, memory_bytes=4 * GIB)])
    urgent = [submitted("urgent", model="1600", latency_sensitive=True)]
    world.write(world.core.submit(urgent, 0.0, 0.0)[0])
    world.report("a", tasks=[gone])
    world.write(
        [Placed("urgent", 1, "a", [[0, 800, 4 * GIB]], [], 0.0)]
    )  # its node has no capacity for it, but b has
    world.core.discard_decision()

    assert why("moved").startswith(
        "it waits after too little is left: it prefers node a, where it ran, for another 60 s"
    )
    world.submit("wide", gpus=2)
    assert why("wide").startswith("it waits for other nodes: it needs 2 devices of one node")


class StartAndPreempt(BestFit):
    """Policy that preempts each job in the decision that starts it."""

    def decide(self, state, forecasts, rng):
        started = super().decide(state, forecasts, rng)
        return [*started, *(Preempt(action.job_id) for action in started)]


def test_a_job_that_is_preempted_in_the_decision_that_starts_it_still_waits():
    world = World(StartAndPreempt())
    world.report("a")
    world.submit("job")

    assert world.decide() == []
    assert world.stage("job") is Stage.WAITING
    world.core.policy = BestFit()
    assert world.decide() == ["Placed"]
