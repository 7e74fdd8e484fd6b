"""Law: dependencies, arrays and limits hold when the controller is killed at any record."""

from __future__ import annotations

import math

import pytest

from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.replayed_state import ENDED, Stage
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from tests.schedulers.live.controller.test_law import GRACE_S, World


def a_job(name, runtime_s, **fields):
    environment = {"runtime": str(runtime_s)}
    return SubmittedJob(
        Job(name, 0.0), ("train",), environment=environment, grace_s=GRACE_S, **fields
    )


SUBMITTED = (
    (a_job("a", 3),),
    tuple(a_job(f"s-{i}", 2, array="s", array_limit=1) for i in range(3)),
    (a_job("b", 2, after=("a", "s")), a_job("late", 60, time_limit_s=4.0)),
    (a_job("c", 2, after_any=("late", "b")), a_job("never", 2, after=("late",))),
)


@pytest.mark.parametrize("after", [False, True])
def test_a_controller_killed_at_any_record_keeps_order_and_limits(after):
    number, records = 0, math.inf
    while number < records:
        number += 1
        world = World(7, "best-fit")
        world.faults, world.dies_at, world.dies_after = False, number, after
        ended_at: dict[str, float] = {}
        started_at: dict[str, float] = {}
        for jobs in SUBMITTED:
            world.submit(*jobs)
        for _ in range(120):
            world.step()
            assert sum(len(world.running.get(f"s-{i}", ())) for i in range(3)) <= 1
            for name, job in world.core.state.jobs.items():
                if job.stage in ENDED:
                    ended_at.setdefault(name, world.now_s)
            for name, _ in world.started:
                started_at.setdefault(name, world.now_s)
            if len(ended_at) == 8:
                break
        world.check_replay()
        stages = {name: job.stage for name, job in world.core.state.jobs.items()}
        assert stages.pop("late") is Stage.TIMED_OUT
        assert stages.pop("never") is Stage.CANCELLED
        assert set(stages.values()) == {Stage.FINISHED}
        assert started_at["b"] >= max(ended_at[name] for name in ("a", "s-0", "s-1", "s-2"))
        assert started_at["c"] >= max(ended_at["late"], ended_at["b"])
        assert "never" not in started_at
        records = len(world.journal)
    assert records > 25
