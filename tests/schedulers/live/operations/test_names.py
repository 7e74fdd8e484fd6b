"""Tests of the names in dependencies: jobs and arrays of several users, cycles and limits."""

from __future__ import annotations

import time

import pytest

from presage.errors import ForbiddenError, InvalidJobError
from presage.schedulers.live.controller.operations import dependencies
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.live.controller.server.job_filter import select_jobs
from presage.schedulers.live.controller.status_messages import job_status
from presage.schedulers.live.protocol.submitted_job import MAX_DEPENDENCIES
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.test_core import V100, World, ended, task
from tests.schedulers.live.operations.test_core import ANN, BOB, ROOT, Operated, a_job, members


@pytest.fixture
def world():
    made = Operated()
    made.report("a", [V100])
    return made


def cancel(world, *names, caller=ANN):
    return world.write(world.core.cancel(names, world.now_s, world.now_s, caller))


def test_a_cycle_through_an_array_that_is_known_is_refused(world):
    world.send(a_job("s-0", array="s"))
    cycle = [a_job("s-1", array="s", after=("x",)), a_job("x", after_any=("s",))]
    for jobs in (cycle, cycle[::-1]):
        with pytest.raises(InvalidJobError, match="jobs 's-1', 'x': they run after each other"):
            world.send(*jobs)
    assert list(world.core.state.jobs) == ["s-0"]
    world.send(a_job("s-1", array="s"), a_job("x", after_any=("s",)))
    assert world.core.state.jobs["x"].awaited == ["s-0", "s-1"]


def test_a_job_of_an_array_only_has_to_finish_for_dependencies_on_that_array(world):
    world.send(a_job("s-3", array="s"), a_job("s"))
    world.send(a_job("next", after=("s",), after_any=("s-3",)))  # the job s, not the array
    world.send(a_job("t-0", array="train"), caller=BOB)
    world.send(a_job("t-1", array="train"))
    world.send(a_job("other", after=("train",), after_any=("t-0",)))
    cancel(world, "s-3")
    cancel(world, "t-0", caller=BOB)
    assert world.end_due() == []
    assert world.why("next") == "it waits: it runs after s"
    cancel(world, "t-1")
    assert world.end_due() == ["Ended"]
    assert world.stage("other") is Stage.CANCELLED


def test_a_new_job_with_the_name_of_an_array_is_no_dependency(world):
    world.send(a_job("s-0", array="s"))
    for jobs in (
        [a_job("s"), a_job("x", after=("s",))],
        [a_job("x", after_any=("s",)), a_job("s")],
    ):
        with pytest.raises(
            InvalidJobError, match="job 'x': 's', after which it runs, is a new job"
        ):
            world.send(*jobs)
    world.send(a_job("s"))
    world.send(a_job("x", after=("s",)))
    assert world.core.state.jobs["x"].awaited == ["s"]


def test_another_user_cannot_take_the_name_of_an_array(world):
    world.send(a_job("s-0", array="s"), a_job("s-1", array="s"))
    world.send(a_job("s"), caller=BOB)
    world.send(a_job("next", after=("s",)))
    assert world.core.state.jobs["next"].awaited == ["s-0", "s-1"]
    cancel(world, "s", caller=BOB)
    assert world.end_due() == []
    world.send(a_job("b-0", after_any=("s-0",)), caller=BOB)  # another user's job is a dependency


def test_the_records_of_an_array_are_dropped_with_its_jobs():
    world = Operated(max_ended_jobs=0)
    world.report("a", [V100])
    world.send(a_job("s-0", array="s"), a_job("s-1", array="s"))
    cancel(world, "s-0")
    assert world.write(world.core.prune(1.0)) == ["Pruned"]
    world.send(a_job("next", after=("s",)))
    assert world.core.state.jobs["next"].awaited == ["s-1"]
    cancel(world, "s-1", "next")
    world.write(world.core.prune(1.0))
    assert world.core.state.gates.arrays == {}
    with pytest.raises(InvalidJobError, match="no job 's' after which it could run, or it ended l"):
        world.send(a_job("late", after=("s",)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"after": ("",)}, "there is no job '' after which it could run"),
        ({"after_any": ("x",) * (MAX_DEPENDENCIES + 1)}, "runs after more than 1,000 jobs"),
        ({"array": "\x1b[2J"}, "at most 128 printable characters"),
    ],
)
def test_names_that_no_job_can_have_are_refused(world, fields, message):
    with pytest.raises(InvalidJobError, match=message):
        world.send(a_job("x", **fields))


def test_a_submission_cannot_wait_for_millions_of_jobs(world, monkeypatch):
    monkeypatch.setattr(dependencies, "MAX_AWAITED", 6)
    world.send(*(a_job(f"s-{i}", array="s") for i in range(3)))
    world.send(a_job("x-0", after=("s",)), a_job("x-1", after_any=("s",)))
    with pytest.raises(InvalidJobError, match="job 'y-2': the submitted jobs run after more than"):
        world.send(*(a_job(f"y-{i}", after=("s",)) for i in range(3)))


def test_an_administrator_may_hold_what_its_owner_holds(world):
    world.send(a_job("job"))
    world.hold("job")
    assert world.hold("job", caller=ROOT) == ["Held"]
    assert world.hold("job", caller=ROOT) == []
    assert world.hold("job") == []
    with pytest.raises(ForbiddenError, match="held by the administrator 'root'"):
        world.hold("job", release=True)


def test_jobs_of_an_array_with_a_limit_start_by_priority():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(*(a_job(f"s-{i}", array="s", array_limit=1) for i in range(3)))
    world.priority("s-2", 5)
    world.decide()
    assert members(world, Stage.PLACED) == ["s-2"]
    world.report("a", [V100] * 4, tasks=[task("s-2")])
    world.priority("s-0", -1)
    world.report("a", [V100] * 4, tasks=[ended("s-2", finished=True)])
    world.decide()
    assert members(world, Stage.PLACED) == ["s-1"]


def test_many_jobs_that_wait_for_an_array_open_together_within_their_limit():
    world = Operated()
    world.report("a", [V100] * 4)
    world.send(a_job("s-0", array="s"), a_job("s-1", array="s"))
    world.send(*(a_job(f"x-{i}", array="x", array_limit=2, after=("s",)) for i in range(5)))
    world.decide()
    world.report("a", [V100] * 4, tasks=[ended("s-0", finished=True), task("s-1")])
    assert world.decide() == []
    world.report("a", [V100] * 4, tasks=[ended("s-1", finished=True)])
    assert world.decide() == ["Placed", "Placed"]
    assert members(world, Stage.PLACED) == ["x-0", "x-1"]


def test_a_job_that_waits_again_is_not_listed_for_its_last_node(world):
    world.send(a_job("job"), a_job("over"))
    world.decide()
    world.runs("job")
    world.requeue("job")
    request = pb.ListRequest(node="a")

    def listed():
        jobs = world.core.state.jobs.values()
        return [job.job_id for job in select_jobs(world.core, jobs, request)]

    assert listed() == ["job"]
    world.hold("job")
    world.end("job", requested=True)
    assert listed() == []
    world.decide()
    world.end("over")
    assert listed() == ["over"]


def test_lists_have_the_first_of_many_dependencies(world):
    names = [f"{i:0>120}" for i in range(50)]
    world.send(*(a_job(name) for name in names))
    world.send(a_job("next", after=tuple(names), after_any=tuple(names)))
    job = world.core.state.jobs["next"]
    row = job_status(world.core, job, 0.0).job
    assert (row.after[0], row.after[-1], row.after_any[-1]) == (names[0], "…", "…")
    assert row.ByteSize() < 4_000
    assert list(job_status(world.core, job, 0.0, full=True).job.after) == names


def test_large_arrays_do_not_stop_the_controller():
    world = World()
    world.report("a", [V100] * 4)
    began_s = time.process_time()
    for part in range(5):
        jobs = [a_job(f"s-{part}-{i}", array="s", array_limit=4) for i in range(1_000)]
        world.write(world.core.submit(jobs, 0.0, 0.0, ANN)[0])
    jobs = [a_job(f"x-{i}", array="x", array_limit=4, after=("s",)) for i in range(100)]
    world.write(world.core.submit(jobs, 0.0, 0.0, ANN)[0])
    world.decide()
    assert len(members(world, Stage.PLACED)) == 4
    cancel(world, *world.core.state.jobs)
    assert len(members(world, Stage.CANCELLED)) == 5_096
    # About 2 s; 16 s if each record reviews its whole array, or each name is sought in all jobs.
    assert time.process_time() - began_s < 9.0
