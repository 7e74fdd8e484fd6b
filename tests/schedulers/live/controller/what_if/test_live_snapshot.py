"""Copies of a live cluster's state, and the answers that follow from them."""

from __future__ import annotations

import pytest

from presage.errors import UnknownJobError
from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.what_if.live_snapshot import copy_state
from presage.schedulers.what_if.answer import Verdict
from presage.schedulers.what_if.what_if import what_if
from tests.schedulers.live.controller.test_core import (
    GRACE_S,
    LEASE_S,
    V100,
    FakeForecaster,
    World,
    ended,
    task,
)


class Exact(FakeForecaster):
    """Forecaster without upper bounds, whose run times are exact."""

    def predictions(self, asked):
        return [one and one._replace(high_s=None) for one in super().predictions(asked)]


def asked(world, *names, **options):
    copied = copy_state(world.core, world.now_s)
    assert copied is not None
    options.setdefault("policy", "sharing")
    return what_if(copied.snapshot(), names, forecaster=Exact(), samples=3, **options)


def busy(saved=0.0, **values):
    """Return a cluster of one device whose job has run for 40 of 100 s; another job waits."""
    world = World()
    world.report("a")
    world.submit("runs", "waits", model="700")
    world.decide()
    world.report("a", tasks=[task("runs")])
    world.now_s = 40.0
    world.report("a", tasks=[task("runs", ran_s=40.0, done=0.4, saved=saved, **values)])
    world.decide()
    return world


def test_a_waiting_job_starts_when_the_running_one_ends():
    running, waiting = asked(busy(), "runs", "waits")

    assert running.verdict is Verdict.STARTED
    assert running.end.quantile_s(0.5) == pytest.approx(60.0)
    assert waiting.start.quantile_s(0.5) == pytest.approx(60.0)
    assert waiting.end.quantile_s(0.5) == pytest.approx(160.0)


def test_estimated_progress_is_no_measurement():
    world = busy(done_estimated=True)

    (waiting,) = asked(world, "waits")

    assert waiting.basis.run_times == {"its forecast": 2}
    assert waiting.start.quantile_s(0.5) == pytest.approx(60.0, abs=2.0)


def test_a_job_that_leaves_its_node_waits_again():
    world = busy(saved=0.25)
    world.write(world.core.drain("a", undo=False, evict=True, now_s=world.now_s))
    world.write(world.core.drain("a", undo=True, evict=False, now_s=world.now_s))
    world.decide()

    (leaving,) = asked(world, "runs")

    assert leaving.verdict is Verdict.PREDICTED
    assert "job runs waits again in 0 s, because it leaves node a" in leaving.basis.assumptions


def test_a_job_on_a_silent_node_waits_again_once_the_node_is_lost():
    world = busy(saved=0.25)
    world.now_s = 60.0
    world.report("b", agent_id="two")
    world.decide()  # `waits` is placed on b

    (silent,) = asked(world, "runs")

    lost_s = 40.0 + LEASE_S + GRACE_S + END_S - 60.0
    expected = f"job runs waits again in {lost_s:.0f} s, because node a is silent"
    assert expected in silent.basis.assumptions
    assert "node a does not come back" in silent.basis.assumptions
    assert silent.start.quantile_s(0.5) == pytest.approx(100.0)  # b is busy until then
    assert silent.end.quantile_s(0.5) == pytest.approx(175.0)  # a quarter is in its checkpoint


def test_a_job_on_a_drained_node_runs_elsewhere():
    world = busy()
    world.report("b", agent_id="two")
    world.write(world.core.drain("a", undo=False, evict=False, now_s=world.now_s))
    world.decide()

    (running,) = asked(world, "runs")

    assert running.verdict is Verdict.STARTED
    assert running.end is None
    assert running.why == "it runs on node a, which gets no jobs"


def test_a_job_of_more_devices_than_a_node_has_is_impossible():
    world = busy()
    world.submit("wide", model="700", gpus=2)
    world.decide()

    (wide,) = asked(world, "wide")

    assert wide.verdict is Verdict.IMPOSSIBLE
    assert "1" in wide.why


def test_ended_jobs_are_the_past_of_arrivals_and_forecasts():
    world = busy()
    world.now_s = 90.0
    world.report("a", tasks=[ended("runs", finished=True)])
    world.decide()

    copied = copy_state(world.core, world.now_s)
    assert copied is not None
    (past,) = copied.snapshot().past.jobs

    assert (past.job.job_id, past.kind, past.is_finished) == ("runs", "v100", False)  # it shared
    with pytest.raises(UnknownJobError, match="job 'runs' neither waits nor runs"):
        asked(world, "runs")


def test_a_job_that_the_policy_has_not_seen_yet_is_included():
    world = busy()
    world.submit("new", model="700")

    (new,) = asked(world, "new")

    assert new.start.quantile_s(0.5) == pytest.approx(160.0)


def test_without_a_view_there_is_no_copy():
    world = World()

    assert copy_state(world.core, 0.0) is None
    world.report("a", [V100])
    assert copy_state(world.core, 0.0) is None  # until the first decision
    world.decide()
    assert copy_state(world.core, 0.0) is not None


def test_a_copy_does_not_change_with_the_cluster():
    world = busy()
    copied = copy_state(world.core, world.now_s)
    assert copied is not None
    before = copied.snapshot()
    world.now_s = 1_000.0
    world.report("a", tasks=[task("runs", ran_s=900.0, done=0.9)])
    world.write(world.core.find_lost(world.now_s + 100, world.now_s))

    (waiting,) = what_if(before, ["waits"], policy="sharing", forecaster=Exact(), samples=1)

    assert waiting.start is not None
    assert waiting.start.quantile_s(0.5) == pytest.approx(60.0)
