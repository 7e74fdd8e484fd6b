"""Preempted and complete jobs: their progress for the policy, and commands for their workers."""

from __future__ import annotations

import pytest

from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from tests.schedulers.live.controller.test_core import V100, World, ended, task


def progress(world, name):
    return world.core.view(world.now_s).state(world.now_s).progress(name)


def test_a_waiting_job_makes_no_progress():
    world = World(ShortestRemainingFirst())
    world.report("a", [V100])
    world.submit("one", model="1000")
    world.decide()
    allocations = list(world.core.commands("a").tasks[0].allocations)
    world.now_s = 50.0
    world.report("a", tasks=[task("one", ran_s=50.0, done=0.5, allocations=allocations)])
    world.now_s = 60.0
    assert progress(world, "one") == pytest.approx(0.6)

    world.report("a", tasks=[ended("one", saved=0.5, requested=True)])
    world.now_s = 69.0

    assert world.stage("one") is Stage.WAITING
    assert progress(world, "one") == 0.5


def test_an_elastic_job_has_the_progress_of_its_checkpoint_before_its_workers_read_it():
    world = World(Elastic())
    world.report("a", [V100, V100])
    world.submit("one", model="1000", gpus=2, min_gpus=1)
    world.decide()
    workers = [command.job.job_id for command in world.core.commands("a").tasks]
    assert workers == ["one/m1", "one/m2"]
    world.core.note_leader(
        world.core.job("one"), LeaderReport(1, 0.2, 0.0, 2, 0.01, 10.0, {}, world.now_s)
    )
    world.now_s = 9.0
    assert progress(world, "one") == pytest.approx(0.29)

    world.report("a", [V100, V100], tasks=[ended(w, saved=0.4, requested=True) for w in workers])
    world.now_s = 18.0
    assert progress(world, "one") == 0.4

    world.decide()
    starting = LeaderReport(2, 0.0, 0.0, 0, 0.0, 0.0, {}, world.now_s)
    world.core.note_leader(world.core.job("one"), starting)
    assert world.stage("one") is Stage.PLACED
    assert progress(world, "one") == 0.4


def test_a_worker_that_has_not_joined_is_ended_when_its_job_is_complete():
    world = World(Elastic())
    world.report("a", [V100, V100])
    world.submit("one", model="1000", gpus=2, min_gpus=1)
    world.decide()
    states = {"m1": "member", "m2": "joining"}
    report = LeaderReport(1, 0.9, 0.0, 1, 0.0, 0.0, states, world.now_s)
    world.core.note_leader(world.core.job("one"), report)
    tasks = [ended("one/m1", finished=True), task("one/m2")]
    world.report("a", [V100, V100], tasks=tasks)

    (command,) = world.core.commands("a").tasks
    assert (command.job.job_id, command.end_reason) == ("one/m2", "its job is complete")
    world.report("a", [V100, V100], tasks=[ended("one/m2", requested=True)])
    assert world.stage("one") is Stage.FINISHED
