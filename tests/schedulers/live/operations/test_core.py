"""Tests of the pure core: holds, requeues, priorities, time limits, dependencies and arrays."""

from __future__ import annotations

import pytest

from presage.errors import ForbiddenError, InvalidJobError, UnknownJobError
from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.explanations.explain import summarize_job
from presage.schedulers.live.controller.journal.records import record_from_json
from presage.schedulers.live.controller.operations.job_changes import (
    change_priority,
    hold_jobs,
    requeue_jobs,
)
from presage.schedulers.live.controller.replayed_state import ReplayedState, Stage
from presage.schedulers.live.controller.status_messages import job_status
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from tests.schedulers.live.controller.test_core import V100, World, ended, task

ANN, BOB = (Caller(name, frozenset({"submit"})) for name in ("ann", "bob"))
ROOT = Caller("root", frozenset({"submit", "admin"}))


class Operated(World):
    """World whose users change jobs; each change is also replayed from journal and snapshot."""

    def send(self, *jobs, caller=ANN):
        records, _ = self.core.submit(jobs, self.now_s, self.now_s, caller)
        return self.write(records)

    def hold(self, *names, release=False, caller=ANN):
        return self.write(hold_jobs(self.core.state, names, self.now_s, caller, release=release))

    def requeue(self, *names, caller=ANN):
        return self.write(requeue_jobs(self.core.state, names, self.now_s, caller))

    def priority(self, name, value, caller=ANN):
        return self.write(change_priority(self.core.state, [name], value, self.now_s, caller))

    def end_due(self):
        return self.write(self.core.end_due(self.now_s, self.now_s))

    def end(self, name, attempt=1, **how):
        """Let the node report the end of a job."""
        return self.report("a", tasks=[ended(name, attempt, **(how or {"finished": True}))])

    def runs(self, name, attempt=1, ran_s=1.0):
        return self.report("a", tasks=[task(name, attempt, ran_s=ran_s)])

    def why(self, name):
        return summarize_job(self.core, self.core.state.jobs[name], 0, self.now_s)

    def write(self, records):
        names = super().write(records)
        rows = self.core.state.take_changes()
        self.snapshot = {**getattr(self, "snapshot", {}), **rows}
        kept = {key: row for key, row in self.snapshot.items() if row is not None}
        read = ReplayedState.from_rows(kept)
        assert read.jobs == self.core.state.jobs
        assert read.gates == self.core.state.gates
        assert self.begin().state.gates == self.core.state.gates
        return names


def a_job(name, **fields):
    values = {key: fields.pop(key) for key in ("priority", "gpus") if key in fields}
    return SubmittedJob(Job(name, 0.0, **values), ("train",), grace_s=5.0, **fields)


@pytest.fixture
def world():
    made = Operated()
    made.report("a", [V100])
    return made


def test_a_held_job_starts_only_once_it_is_released(world):
    world.send(a_job("job"))
    assert world.hold("job") == ["Held"]
    assert world.hold("job") == []
    assert world.decide() == []
    assert world.why("job") == "it waits: it is held by ann"
    status = job_status(world.core, world.core.state.jobs["job"], 1.0)
    assert (status.held, status.phase, status.reason) == (True, pb.WAITING, "it is held by ann")

    world.core = world.begin()  # the controller was killed
    world.report("a", [V100])
    assert world.decide() == []
    assert world.hold("job", release=True) == ["Held"]
    assert world.decide() == ["Placed"]


def test_a_running_job_that_is_held_goes_on_and_waits_once_it_is_requeued(world):
    world.send(a_job("job"))
    world.decide()
    world.runs("job")
    world.hold("job")
    assert world.stage("job") is Stage.RUNNING
    assert world.requeue("job") == ["Stopping"]
    assert world.requeue("job") == []
    (command,) = world.core.commands("a").tasks
    assert (command.end_reason, command.discard) == ("it was requeued", False)

    assert world.end("job", saved=0.4, requested=True) == ["Requeued"]
    assert world.core.state.jobs["job"].saved == 0.4
    assert world.decide() == []
    world.hold("job", release=True)
    assert world.decide() == ["Placed"]
    (command,) = world.core.commands("a").tasks
    assert (command.attempt, command.done) == (2, 0.4)


def test_what_an_administrator_holds_only_administrators_release(world):
    world.send(a_job("job"))
    world.hold("job", caller=ROOT)
    with pytest.raises(ForbiddenError, match="job 'job' is held by the administrator 'root'"):
        world.hold("job", release=True)
    assert world.hold("job", release=True, caller=ROOT) == ["Held"]
    world.hold("job")
    assert world.hold("job", release=True) == ["Held"]


def test_changes_are_refused_for_other_users_and_ended_or_unknown_jobs_and_change_none(world):
    world.send(a_job("over"), a_job("job"))
    world.decide()
    world.end("over")
    for change in (world.hold, world.requeue, lambda *names: world.priority(names[-1], 3)):
        with pytest.raises(InvalidJobError, match=r"nothing was \w+: job 'over' is finished"):
            change("job", "over") if change != world.requeue else change("over")
        with pytest.raises(UnknownJobError, match=r"nothing was \w+: there is no job 'none'"):
            change("none")
    with pytest.raises(ForbiddenError):
        world.hold("job", caller=BOB)
    with pytest.raises(InvalidJobError, match="job 'job' is in the queue already"):
        world.requeue("job")
    assert not world.core.state.jobs["job"].held


def test_a_changed_priority_changes_the_order_and_survives_a_restart(world):
    world.send(a_job("first"), a_job("second"))
    assert world.priority("second", 7) == ["PriorityChanged"]
    assert world.priority("second", 7) == []
    world.core = world.begin()
    world.report("a", [V100])
    world.decide()
    assert world.stage("second") is Stage.PLACED
    assert world.core.state.jobs["second"].message.priority == 7
    # The same submission is still known as that job.
    assert world.core.submit([a_job("second")], 0.0, 0.0, ANN) == ([], ["second"])
    assert world.priority("second", -1) == ["PriorityChanged"]  # also of a job on a node
    assert world.decide() == []


def test_all_jobs_of_a_user_are_cancelled_by_the_user_or_an_administrator(world):
    world.send(a_job("a1"), a_job("a2"))
    world.send(SubmittedJob(Job("b1", 0.0, user="bob"), ("train",)), caller=BOB)
    state = world.core.state
    assert world.core.cancellable("", ANN) == ["a1", "a2"]
    assert world.core.cancellable("bob", BOB) == ["b1"]
    assert world.core.cancellable("", ROOT) == ["a1", "a2", "b1"]
    assert world.core.cancellable("bob", ROOT) == ["b1"]
    with pytest.raises(ForbiddenError, match="jobs of 'bob' are not yours, 'ann'"):
        world.core.cancellable("bob", ANN)
    world.write(world.core.cancel(world.core.cancellable("", ROOT), 1.0, 1.0, ROOT))
    assert {job.stage for job in state.jobs.values()} == {Stage.CANCELLED}
    assert world.core.cancellable("", ROOT) == []


# Time limits --------------------------------------------------------------------------------


def test_a_job_ends_at_its_time_limit_with_time_to_save_its_state(world):
    world.send(a_job("job", time_limit_s=60.0))
    world.decide()
    world.now_s = 100.0
    world.runs("job", ran_s=50.0)  # it waited and started for 50 s
    assert world.end_due() == []
    world.now_s = 110.5
    assert world.end_due() == ["Stopping"]
    assert world.end_due() == []
    (command,) = world.core.commands("a").tasks
    assert not command.discard
    assert "time limit of 60 s" in command.end_reason

    world.core = world.begin()
    assert world.end("job", requested=True) == ["Ended"]
    job = world.core.state.jobs["job"]
    assert (job.stage, job.reason) == (
        Stage.TIMED_OUT, "it ran longer than its time limit of 60 s",
    )  # fmt: skip
    assert job_status(world.core, job, 200.0).phase == pb.TIMED_OUT


def test_a_time_limit_counts_from_each_start_and_a_job_may_finish_in_its_grace_period(world):
    world.send(a_job("job", time_limit_s=60.0))
    world.decide()
    world.now_s = 50.0
    world.runs("job", ran_s=50.0)
    world.requeue("job")
    world.end("job", requested=True)
    world.decide()
    world.now_s = 80.0
    world.runs("job", 2, ran_s=30.0)
    assert world.end_due() == []
    world.now_s = 120.0
    assert world.end_due() == ["Stopping"]
    assert world.end("job", 2, finished=True) == ["Ended"]
    assert world.stage("job") is Stage.FINISHED


def test_a_job_at_its_limit_can_be_cancelled_and_its_node_may_be_lost(world):
    for name in ("cancelled", "lost"):
        world.send(a_job(name, time_limit_s=60.0))
        world.decide()
        start_s = world.now_s = world.now_s + 10.0
        world.runs(name)
        world.now_s = start_s + 61.0
        world.report("a", tasks=[task(name, ran_s=62.0)])
        assert world.end_due() == ["Stopping"]
        if name == "cancelled":
            assert world.write(world.core.cancel([name], 0.0, 0.0)) == ["Stopping"]
            assert world.core.commands("a").tasks[0].discard
            world.end(name, requested=True)
            assert world.stage(name) is Stage.CANCELLED
            world.report("a", tasks=[])
    world.now_s += 1_000.0
    assert "Ended" in world.write(world.core.find_lost(world.now_s, world.now_s))
    assert world.stage("lost") is Stage.TIMED_OUT
    assert "time limit" in world.core.state.jobs["lost"].reason


# Dependencies -------------------------------------------------------------------------------


def test_a_job_starts_after_the_jobs_that_it_depends_on_have_finished(world):
    world.send(a_job("a1"), a_job("a2"))
    world.send(a_job("next", after=("a1",), after_any=("a2",)))
    world.decide()
    assert world.why("next") == "it waits: it runs after a1, a2"
    world.core = world.begin()
    world.report("a", tasks=[task("a1")])
    world.end("a1")
    assert world.why("next") == "it waits: it runs after a2"
    world.decide()
    world.end("a2", description="status 1")
    assert world.stage("a2") is Stage.FAILED
    assert world.end_due() == []
    assert world.decide() == ["Placed"]
    assert world.stage("next") is Stage.PLACED


def test_a_failed_dependency_ends_the_jobs_that_run_after_it_one_after_another(world):
    world.send(a_job("a1"), a_job("b1", after=("a1",)), a_job("c1", after=("b1",)))
    world.send(a_job("d1", after_any=("c1",)))
    world.decide()
    world.end("a1", description="status 1")
    assert world.decide() == []
    assert world.end_due() == ["Ended"]
    assert world.end_due() == ["Ended"]
    assert world.end_due() == []
    reasons = {name: job.reason for name, job in world.core.state.jobs.items()}
    assert reasons["b1"] == "job 'a1', after which it runs, is failed"
    assert reasons["c1"] == "job 'b1', after which it runs, is cancelled"
    assert world.stage("c1") is Stage.CANCELLED
    assert world.decide() == ["Placed"]
    assert world.stage("d1") is Stage.PLACED


def test_a_requeue_of_a_dependency_is_no_end_of_it(world):
    world.send(a_job("a1"), a_job("b1", after=("a1",)))
    world.decide()
    world.runs("a1")
    world.requeue("a1")
    world.end("a1", requested=True)
    assert world.end_due() == []
    assert world.why("b1") == "it waits: it runs after a1"


def test_a_cancelled_job_is_no_longer_waited_for_and_its_dependencies_forget_it(world):
    world.send(a_job("a1"), a_job("b1", after=("a1",)))
    world.write(world.core.cancel(["b1"], 0.0, 0.0, ANN))
    assert not world.core.state.gates.dependents
    world.decide()
    world.end("a1")
    assert world.stage("b1") is Stage.CANCELLED


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([a_job("x", after=("none",))], "job 'x': there is no job 'none' after which it could run"),
        ([a_job("x", after_any=("none",))], "there is no job 'none'"),
        ([a_job("x", after=("x",))], "jobs 'x': they run after each other"),
        (
            [a_job("x", after=("y",)), a_job("y", after_any=("x",))],
            "jobs 'x', 'y': they run after each other",
        ),
        ([a_job("x", after=("failed",))], "job 'failed', after which it runs, is failed"),
    ],
)
def test_unknown_failed_and_circular_dependencies_are_refused(world, jobs, message):
    world.send(a_job("failed"))
    world.decide()
    world.end("failed", description="status 1")
    with pytest.raises(InvalidJobError, match=message) as error:
        world.send(*jobs)
    assert "\n" not in str(error.value)
    assert "x" not in world.core.state.jobs


def test_jobs_of_one_submission_may_depend_on_later_ones_and_on_finished_jobs(world):
    world.send(a_job("done"))
    world.decide()
    world.end("done")
    world.send(a_job("x", after=("y", "done")), a_job("y", after=("done",)))
    world.decide()
    assert (world.stage("x"), world.stage("y")) == (Stage.WAITING, Stage.PLACED)
    assert world.core.submit([a_job("x", after=("y", "done"))], 0.0, 0.0, ANN) == ([], ["x"])


# Arrays -------------------------------------------------------------------------------------


def members(world, stage):
    return [name for name, job in world.core.state.jobs.items() if job.stage is stage]


def test_an_array_runs_no_more_of_its_jobs_at_once_than_its_limit():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(*(a_job(f"s-{i}", array="s", array_limit=2) for i in range(5)))
    assert world.decide() == ["Placed", "Placed"]
    assert members(world, Stage.PLACED) == ["s-0", "s-1"]
    assert world.why("s-4") == "it waits: array s runs at most 2 of its jobs at once"
    world.core = world.begin()
    world.report("a", [V100] * 4, tasks=[task("s-0"), task("s-1")])
    assert world.decide() == []

    world.report("a", [V100] * 4, tasks=[ended("s-0", finished=True), task("s-1")])
    assert world.decide() == ["Placed"]
    assert members(world, Stage.PLACED) == ["s-2"]
    world.hold("s-3")
    world.report("a", [V100] * 4, tasks=[task("s-2"), ended("s-1", description="status 2")])
    assert world.decide() == ["Placed"]
    assert members(world, Stage.PLACED) == ["s-4"]


def test_a_requeued_job_of_an_array_goes_before_later_ones():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(*(a_job(f"s-{i}", array="s", array_limit=1) for i in range(3)))
    world.decide()
    world.report("a", [V100] * 4, tasks=[task("s-0")])
    world.requeue("s-0")
    assert world.decide() == []  # it is still on its node
    world.report("a", [V100] * 4, tasks=[ended("s-0", requested=True)])
    world.decide()
    assert members(world, Stage.PLACED) == ["s-0"]


def test_a_job_runs_after_all_jobs_of_an_array_of_its_submitter():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(*(a_job(f"s-{i}", array="s") for i in range(3)))
    with pytest.raises(InvalidJobError, match="there is no job 's'"):
        world.send(a_job("other", after=("s",)), caller=BOB)
    with pytest.raises(InvalidJobError, match="runs after its own array"):
        world.send(a_job("s-9", array="s", after=("s",)))
    world.decide()
    world.report("a", [V100] * 4, tasks=[ended("s-0", finished=True), task("s-1"), task("s-2")])
    world.send(a_job("next", after=("s",)), a_job("any", after_any=("s",)))
    assert world.why("next") == "it waits: it runs after s-1, s-2"
    world.report("a", [V100] * 4, tasks=[task("s-1"), ended("s-2", description="status 1")])
    assert world.end_due() == ["Ended"]
    assert world.core.state.jobs["next"].reason == "job 's-2', after which it runs, is failed"
    with pytest.raises(InvalidJobError, match="job 's-2', after which it runs, is failed"):
        world.send(a_job("later", after=("s",)))
    world.report("a", [V100] * 4, tasks=[ended("s-1", finished=True)])
    assert world.decide() == ["Placed"]
    assert world.stage("any") is Stage.PLACED


def test_arrays_of_the_same_name_of_two_users_have_limits_of_their_own():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(*(a_job(f"a-{i}", array="s", array_limit=1) for i in range(2)))
    world.send(*(a_job(f"b-{i}", array="s", array_limit=1) for i in range(2)), caller=BOB)
    world.decide()
    assert members(world, Stage.PLACED) == ["a-0", "b-0"]


def test_an_older_journal_has_defaults_for_what_it_does_not_have():
    job = {"job_id": "old", "command": ["train"], "gpus": 1}
    rows = [
        {"type": "NodeJoined", "node": "a", "agent_id": "one", "devices": [["v100", 1]],
         "time_s": 0.0},
        {"type": "NodeDrained", "node": "a", "drained": True, "time_s": 1.0},
        {"type": "DeviceDrained", "node": "a", "device": 0, "drained": True, "time_s": 1.0},
        {"type": "Submitted", "job_id": "old", "job": job, "time_s": 2.0, "time_unix_s": 2.0},
        {"type": "Placed", "job_id": "old", "attempt": 1, "node": "a", "predictions": [],
         "allocations": [[0, 1000, 1]], "time_s": 3.0},
        {"type": "Stopping", "job_id": "old", "attempt": 1, "reason": "it was cancelled",
         "cancel": True, "time_s": 4.0},
    ]  # fmt: skip
    state = ReplayedState()
    for row in rows:
        state.apply(record_from_json(row))

    old = state.jobs["old"]
    assert old.final_stage is Stage.CANCELLED
    assert (old.held, old.awaited, old.priority, old.submitted.time_limit_s) == (False, [], None, 0)
    assert state.health_of("a/0").withdrawal_reason == "it is drained"
    new = ("end_stage", "priority", "held", "held_by", "held_by_admin", "awaited",
           "dependency_problem", "drained_by", "drain_reason")  # fmt: skip
    snapshot = {
        key: {name: value for name, value in row.items() if name not in new}
        for key, row in state.take_changes().items()
        if row is not None
    }
    read = ReplayedState.from_rows(snapshot)
    assert (read.jobs, read.nodes, read.health) == (state.jobs, state.nodes, state.health)
