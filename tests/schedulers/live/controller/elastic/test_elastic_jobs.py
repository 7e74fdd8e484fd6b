"""Tests of elastic jobs in the controller's core: records of their workers, and commands."""

from __future__ import annotations

import pytest

from presage.errors import InvalidJobError, UnknownJobError
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.speedup import Speedup
from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.elastic.growth import may_grow_s
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.elastic.members import task_of_log
from presage.schedulers.live.controller.explanations.explain import summarize_job
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.live.controller.status_messages import job_status, node_status
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.test_core import (
    GRACE_S,
    K80,
    LEASE_S,
    V100,
    FakeForecaster,
    World,
    ended,
    task,
)

NODES = ("a", "b")


class LinearForecaster(FakeForecaster):
    """Forecaster of jobs that are as many times as fast as they have devices."""

    def speedups(self, asked):
        return [Speedup(*3 * (one.gpus / one.job.gpus,)) for one in asked]


class ElasticWorld(World):
    def _forecasts(self, cluster, now_s):
        key = tuple(node.name for node in cluster.nodes)
        return self.known.setdefault(key, Forecasts(LinearForecaster(), cluster))


def make_world(devices=2):
    world = ElasticWorld(Elastic(hold_s=0.0))
    for node in NODES:
        world.report(node, [V100] * devices, agent_id=f"agent of {node}")
    return world


def started(world, name="job", **sizes):
    """Submit an elastic job and let all of its workers run; return it."""
    world.submit(name, model="300", **sizes)
    world.decide()
    run(world)
    return world.core.state.jobs[name]


def run(world):
    """Let nodes report that all of their tasks run; workers that are to end have left."""
    for node in NODES:
        devices = [V100] * len(world.core.state.nodes[node].devices)
        commands = world.core.commands(node)
        tasks = [
            ended(one.job.job_id, one.attempt, requested=True)
            if one.end_reason
            else task(one.job.job_id, one.attempt)
            for one in commands.tasks
        ]
        world.report(node, devices, tasks, commands.version, f"agent of {node}")


def lead(world, job, per_s=0.01, done=0.2, saved=0.1):
    """Let the leader of a job report that all workers train."""
    states = {member.name: "member" for member in job.members}
    size = len(job.members)
    report = LeaderReport(job.attempt, done, saved, size, per_s, 10.0, states, world.now_s)
    world.core.note_leader(job, report)


def places(job):
    return sorted((member.node, member.device) for member in job.members)


def test_an_elastic_job_has_a_task_on_each_device_of_several_nodes():
    world = make_world()
    job = started(world, gpus=3, min_gpus=2, max_gpus=3)

    assert job.stage is Stage.RUNNING
    assert places(job) == [("a", 0), ("a", 1), ("b", 0)]
    (first, second), (third,) = (world.core.commands(node).tasks for node in NODES)
    assert [one.job.job_id for one in (first, second, third)] == ["job/m1", "job/m2", "job/m3"]
    assert [one.worker.name for one in (first, second, third)] == ["m1", "m2", "m3"]
    assert {one.worker.leader_job for one in (first, second, third)} == {"job"}
    assert {(one.job.gpus, one.job.max_gpus) for one in (first, second, third)} == {(1, 0)}
    assert first.submission_id == third.submission_id  # they share a folder for checkpoints
    assert not first.worker.port

    address = pb.ElasticWorker(port=7, token="secret")
    assert world.core.elastic.set_address(job, address)
    assert not world.core.elastic.set_address(job, address)
    assert world.core.commands("b").tasks[0].worker.port == 7


def test_a_job_continues_without_a_worker_and_grows_again_later():
    world = make_world()
    job = started(world, gpus=2, min_gpus=1, max_gpus=2)
    died = ended("job/m1", description="killed by SIGKILL")

    assert world.report("a", [V100] * 2, [died, task("job/m2")], 0, "agent of a") == ["MemberEnded"]
    assert job.stage is Stage.RUNNING
    assert [member.name for member in job.members] == ["m2"]
    assert job.sizes[-1][1:] == [1, "worker m1: killed by SIGKILL"]
    lead(world, job)
    assert world.decide() == []  # a worker failed: it does not grow at once
    assert world.core.wake_s == pytest.approx(10.0)
    world.now_s = 10.5
    run(world)
    assert world.decide() == ["Resized"]
    assert [member.name for member in job.members] == ["m2", "m3"]


def test_below_its_minimum_the_other_workers_save_and_the_job_waits():
    world = make_world()
    job = started(world, gpus=4, min_gpus=4, max_gpus=5)
    lead(world, job, saved=0.4)
    died = ended("job/m4", lost=True, description="its node was shut down")
    third = task("job/m3")

    wrote = world.report("b", [V100] * 2, [third, died], 0, "agent of b")
    assert wrote == ["MemberEnded", "Stopping"]
    assert all(not one.discard for one in world.core.commands("a").tasks)
    left = [ended(f"job/m{i}", requested=True, saved=0.5) for i in (1, 2, 3)]
    world.report("b", [V100] * 2, left[2:], 0, "agent of b")
    assert world.report("a", [V100] * 2, left[:2], 0, "agent of a") == ["Requeued"]
    assert (job.stage, job.saved, job.failures) == (Stage.WAITING, 0.5, 0)
    assert job.sizes[-1][1] == 0
    assert world.decide() == ["Placed"]
    assert (job.attempt, [member.number for member in job.members]) == (2, [1, 2, 3, 4])


def test_a_released_worker_leaves_and_its_device_is_another_jobs_at_once():
    world = make_world(devices=1)
    job = started(world, gpus=2, min_gpus=1, max_gpus=2)
    world.submit("other", model="300")

    assert sorted(world.decide()) == ["Placed", "Resized"]
    other = world.core.state.jobs["other"]
    (leaving,) = (one for one in world.core.commands(other.node).tasks if one.end_reason)
    assert leaving.job.job_id == "job/m2"
    # Its end is not that of the job, even if its process ended without an error.
    done = ended("job/m2", finished=True)
    wrote = world.report(other.node, [V100], [done, task("other")], 0, f"agent of {other.node}")
    assert wrote == ["MemberEnded", "Started"]
    assert job.stage is Stage.RUNNING
    assert len(job.members) == 1
    assert not job.leaving


def test_a_job_is_finished_once_all_of_its_workers_have_ended():
    world = make_world()
    job = started(world, gpus=3, min_gpus=1, max_gpus=3)
    done = [ended("job/m1", finished=True), task("job/m2")]

    assert world.report("a", [V100] * 2, done, 0, "agent of a") == ["MemberEnded"]
    assert world.decide() == []  # it is complete: it does not grow again
    last = ended("job/m3", description="ended with status 1")
    assert world.report("b", [V100] * 2, [last], 0, "agent of b") == ["MemberEnded"]
    last = ended("job/m2", finished=True)
    assert world.report("a", [V100] * 2, [last], 0, "agent of a") == ["Ended"]
    assert job.stage is Stage.FINISHED


@pytest.mark.parametrize(("retries", "stage"), [(0, Stage.FAILED), (1, Stage.WAITING)])
def test_a_job_fails_when_its_last_worker_does(retries, stage):
    world = make_world()
    job = started(world, retries=retries, gpus=2, min_gpus=1, max_gpus=2)
    failed = [ended(f"job/m{i}", description="ended with status 1") for i in (1, 2)]
    world.report("a", [V100] * 2, failed, 0, "agent of a")

    assert job.stage is stage
    assert job.reason == "worker m2: ended with status 1"


def test_a_lost_node_takes_its_workers_only():
    world = make_world()
    job = started(world, gpus=3, min_gpus=1, max_gpus=3)
    world.now_s = LEASE_S + GRACE_S + END_S - 1
    world.report("a", [V100] * 2, [task("job/m1"), task("job/m2")], 0, "agent of a")
    assert world.decide() == []  # with a worker on a silent node it keeps its size
    world.now_s += 2

    lost = world.write(world.core.find_lost(world.now_s, world.now_s))
    assert lost == ["NodeLost", "MemberEnded"]
    assert places(job) == [("a", 0), ("a", 1)]
    assert job.member_failures == 0


def test_a_drained_node_releases_its_workers():
    world = make_world()
    job = started(world, gpus=3, min_gpus=2, max_gpus=3)

    records = world.core.drain("b", undo=False, evict=True, now_s=world.now_s)
    assert world.write(records) == ["NodeDrained", "Resized"]
    assert places(job) == [("a", 0), ("a", 1)]
    records = world.core.drain("a", undo=False, evict=True, now_s=world.now_s)
    assert world.write(records) == ["NodeDrained", "Stopping"]


def test_a_cancelled_job_ends_with_its_last_worker():
    world = make_world()
    job = started(world, gpus=3, min_gpus=1, max_gpus=3)
    world.write(world.core.cancel(["job"], world.now_s, world.now_s))

    assert all(one.discard for one in world.core.commands("a").tasks)
    run(world)
    assert job.stage is Stage.CANCELLED


def test_a_restarted_controller_finds_the_workers():
    world = make_world()
    started(world, gpus=3, min_gpus=1, max_gpus=3)
    before = [list(world.core.commands(node).tasks) for node in NODES]
    world.core = world.begin()

    assert [list(world.core.commands(node).tasks) for node in NODES] == before
    run(world)
    assert world.decide() == []


def test_status_and_explanation_show_workers_and_sizes():
    world = make_world()
    job = started(world, gpus=2, min_gpus=1, max_gpus=3)
    states = {"m1": "member", "m2": "member", "m3": "ready"}
    report = LeaderReport(job.attempt, 0.25, 0.1, 2, 0.02, 10.0, states, world.now_s)
    world.core.note_leader(job, report)

    status = job_status(world.core, job, world.now_s, full=True)
    places = {one.name: (one.node, one.state) for one in status.members}
    assert places == {"m1": ("a", "member"), "m2": ("a", "member"), "m3": ("b", "ready")}
    assert [change.gpus for change in status.sizes] == [3]
    assert status.sizes[0].reason == (
        "it starts on 3 of at most 3 devices, predicted 1.50 times as fast as on 2 devices of 1 "
        "node; that is its maximum"
    )
    assert status.done == 0.25
    assert status.remaining_s == pytest.approx(37.5)
    summary = summarize_job(world.core, job, 0, world.now_s)
    assert summary.startswith("it runs on 3 of 1 to 3 devices: 2 on node a, 1 on node b, attempt 1")
    assert "worker m3 is ready" in summary
    assert [list(one.job_ids) for one in node_status(world.core, "b", 0.0).devices] == [["job"], []]


def test_logs_are_those_of_the_first_worker_or_of_the_named_one():
    world = make_world()
    job = started(world, gpus=3, min_gpus=1, max_gpus=3)

    assert task_of_log(job, "job") == ("job/m1", "a")
    assert task_of_log(job, "job/m3") == ("job/m3", "b")
    with pytest.raises(UnknownJobError, match="job 'job' has no worker 'm9'; attempt 1 has m1, m2"):
        task_of_log(job, "job/m9")


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("job/m1", {}, "ids that end with /m and a number are those of workers"),
        ("job", {"gpus": 4, "max_gpus": 65}, "max_gpus=65, must be <= 64"),
        ("j" * 125, {"gpus": 2, "min_gpus": 1}, "the id of an elastic job has at most 120"),
    ],
)
def test_invalid_jobs_are_rejected(name, sizes, message):
    with pytest.raises(InvalidJobError, match=message):
        make_world().submit(name, **sizes)


def test_a_job_whose_worker_fails_after_the_last_step_has_failed():
    world = make_world()
    job = started(world, gpus=2, min_gpus=1, max_gpus=2)
    failed = ended("job/m1", description="ended with status 1")
    failed.done = 1.0  # it could not write the final model
    world.report("a", [V100] * 2, [failed, task("job/m2")], 0, "agent of a")
    world.report("a", [V100] * 2, [ended("job/m2", finished=True)], 0, "agent of a")

    assert (job.stage, job.reason) == (Stage.FAILED, "worker m1: ended with status 1")


def test_a_job_gives_up_devices_on_which_its_batch_cannot_be_split():
    world = make_world()
    job = started(world, gpus=2, min_gpus=1, max_gpus=4)
    assert len(job.members) == 4
    states = {"m1": "member", "m2": "member", "m3": "member", "m4": "ready"}
    report = LeaderReport(job.attempt, 0.1, 0.0, 3, 0.01, 10.0, states, world.now_s, capacity=3)
    world.core.note_leader(job, report)

    assert world.decide() == ["Resized"]
    assert [member.name for member in job.members] == ["m1", "m2", "m3"]


def test_old_failures_of_workers_do_not_count():
    world = make_world()
    job = started(world, gpus=4, min_gpus=1, max_gpus=4)

    def fail(node, number, now_s):
        world.now_s = now_s
        died = ended(f"job/m{number}", description="killed by SIGKILL")
        others = [task(f"job/m{number + 1}")] if number in (1, 3) else []
        world.report(node, [V100] * 2, [died, *others], 0, f"agent of {node}")
        return may_grow_s(job) - now_s

    assert fail("a", 1, 10.0) == 10.0
    assert fail("a", 2, 20.0) == 20.0
    assert fail("b", 3, 5000.0) == 10.0


def test_a_job_gets_devices_of_one_kind_also_after_a_restart_of_the_controller():
    world = ElasticWorld(Elastic(hold_s=0.0))
    world.report("a", [K80, V100, V100])
    job = started_on(world, "job", gpus=1, min_gpus=1, max_gpus=3)

    assert places(job) == [("a", 1), ("a", 2)]  # a v100 takes half of the time
    world.core = world.begin()
    world.report("a", [K80, V100, V100], [task("job/m1"), task("job/m2")])
    assert world.decide() == []  # its speeds are not known any more, and it keeps its size


def started_on(world, name, **sizes):
    world.submit(name, model="300", **sizes)
    world.decide()
    job = world.core.state.jobs[name]
    world.report("a", [K80, V100, V100], [task(f"{name}/{one.name}") for one in job.members])
    return job
