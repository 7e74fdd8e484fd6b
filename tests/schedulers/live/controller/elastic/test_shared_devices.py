"""Tests of elastic jobs that share a device, in the controller's core: records and commands."""

from __future__ import annotations

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from tests.schedulers.clusters import GIB
from tests.schedulers.live.controller.elastic.test_elastic_jobs import ElasticWorld
from tests.schedulers.live.controller.test_core import V100, ended, task

SIZES = {"gpus": 1, "min_gpus": 1, "max_gpus": 2}
ALL, HALF = (FULL_DEVICE_MILLI, 16 * GIB), (500, 8 * GIB)


def make_world():
    world = ElasticWorld(Elastic(hold_s=0.0, jobs_per_device=2))
    world.report("a", [V100])
    return world


def start(world, name):
    """Submit a job and let its workers run; return it, and the kinds of records."""
    world.submit(name, model="300", **SIZES)
    records = world.decide()
    world.report("a", [V100], tasks_of(world), world.core.commands("a").version)
    return world.core.state.jobs[name], records


def tasks_of(world):
    return [task(one.job.job_id, one.attempt) for one in world.core.commands("a").tasks]


def share_of(job):
    (member,) = job.members
    return member.compute_milli, member.memory_bytes


def commanded(world):
    return {
        one.job.job_id: (one.allocations[0].compute_milli, one.allocations[0].memory_bytes)
        for one in world.core.commands("a").tasks
    }


def test_s4_a_job_that_joins_cuts_the_share_of_the_other_and_returns_it():
    world = make_world()
    first, _ = start(world, "first")
    assert share_of(first) == ALL

    second, records = start(world, "second")
    assert records == ["Resized", "Placed"]
    assert share_of(first) == share_of(second) == HALF
    assert commanded(world) == {"first/m1": HALF, "second/m1": HALF}
    assert [size[1] for size in first.sizes] == [1]  # a new share is no new size
    assert world.decide() == []

    over = ended("second/m1", finished=True)
    world.report("a", [V100], [task("first/m1"), over], world.core.commands("a").version)
    assert second.stage is Stage.FINISHED
    assert world.decide() == ["Resized"]
    assert share_of(first) == ALL


def test_a_job_that_was_placed_stays_although_its_node_does_not_report_it_yet():
    world = make_world()
    first, _ = start(world, "first")
    world.submit("second", model="300", **SIZES)
    world.decide()
    world.report("a", [V100], [task("first/m1")])  # sent before the node had the new command

    assert world.decide() == []
    assert share_of(first) == HALF


def test_a_worker_that_runs_out_of_memory_gets_a_device_of_its_own_next_time():
    world = make_world()
    start(world, "first")
    second, _ = start(world, "second")
    died = ended("second/m1", description="exit status 1", out_of_memory=True)
    world.report("a", [V100], [task("first/m1"), died], world.core.commands("a").version)

    assert second.overflows == 1
    world.decide()
    assert share_of(world.core.state.jobs["first"]) == ALL
    assert second.stage is not Stage.PLACED


def test_the_speed_of_a_job_that_shares_a_device_is_not_that_of_its_size():
    world = make_world()
    first, _ = start(world, "first")
    second, _ = start(world, "second")
    for job in (first, second):
        report = LeaderReport(
            job.attempt, 0.2, 0.1, 1, 0.01, 10.0, {"m1": "member"}, world.now_s + 60.0
        )
        world.core.note_leader(job, report)
        assert world.core.elastic.paces_s(job.job_id) == {}
