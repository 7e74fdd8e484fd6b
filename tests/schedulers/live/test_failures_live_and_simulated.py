"""Nodes of a live cluster that fail by a schedule: nothing is lost, as the simulator predicts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from benchmarks.failures_live.live import detection_of, run_live
from benchmarks.failures_live.outcome import (
    detection_delays_s,
    live_outcome,
    overhead_s,
    rejoin_s,
    submit_times_s,
)
from benchmarks.failures_live.policies import POLICIES
from benchmarks.failures_live.simulated import run_simulated
from benchmarks.failures_live.trace import Plan, Submission, draw_plan, write_tables

from presage.features.hazard.outage import Outage
from tests.serving.support.processes import free_port
from tests.support.slow_tests import all_faults

TOLERANCE = 0.15  # of a mean JCT of half a minute, on a busy machine
LEASE_S = 10.0  # a busy machine may delay reports for seconds


@pytest.fixture
def tables(tmp_path):
    write_tables(tmp_path / "tables")
    return tmp_path / "tables"


@all_faults
def test_jobs_of_failing_nodes_end_once_and_when_simulated(tables, tmp_path):
    jobs = tuple(Submission(f"job-{i}", 2.0 * i, 75) for i in range(5))
    history = tuple(Outage(0, at_s, at_s + 20.0) for at_s in range(-550, -50, 80))
    outages = (Outage(1, 8.0, 42.0), Outage(0, 12.0, 46.0))  # the second while a job runs there
    plan = Plan(jobs, (3.0, 1.0, 1.0), history, outages)
    detection = detection_of(LEASE_S)
    live = run_live(
        plan,
        POLICIES["least-failing"],
        tables,
        tmp_path / "live",
        port=free_port(),
        lease_s=LEASE_S,
    )
    outcome = live_outcome(live)
    delays: dict[str, Any] = {
        "detection": detection,
        "submit_s": submit_times_s(live),
        "overhead_s": overhead_s([live], jobs),
        "rejoin_s": rejoin_s([live]),
    }
    simulated = run_simulated(plan, POLICIES["least-failing"], tables, **delays)

    # No job is lost, none runs twice at a time, and each has one end.
    assert outcome.jct_s.keys() == simulated.jct_s.keys() == {job.job_id for job in jobs}
    lines = live["lines"]
    assert sorted(one["job"] for one in lines if one["event"] == "end") == sorted(outcome.jct_s)
    for node in ("n0", "n1", "n2"):
        there = [one for one in outcome.attempts if one.node == node]
        assert all(one.until_s <= other.from_s + 0.5 for one, other in pairwise(there))
    assert {outcome.attempts[i].node for i in (0, 1)} == {"n1", "n2"}  # n0 has failed before
    assert outcome.restarts == simulated.restarts == 2
    assert all(-2 < delay_s - detection.lost_s < 5 for delay_s in detection_delays_s([live]))
    assert live["rates_per_s"][0] > live["rates_per_s"][2]
    assert simulated.mean_jct_s == pytest.approx(outcome.mean_jct_s, rel=TOLERANCE)
    assert simulated.lost_s == pytest.approx(outcome.lost_s, abs=3.0)


def test_the_simulated_policies_lose_less_where_nodes_fail_often(tables):
    """The plans are drawn, and the policies find the nodes that fail often."""
    names = ("fifo", "least-failing", "expected")
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(100, 120):
        plan = draw_plan(seed)
        assert all(one.until_s <= 0 for one in plan.history)
        assert all(0 <= one.from_s < one.until_s for one in plan.outages)
        for name in names:
            found[name].append(run_simulated(plan, POLICIES[name], tables).lost_s)

    assert sum(found["least-failing"]) < 0.95 * sum(found["fifo"])
    assert sum(found["expected"]) < 0.8 * sum(found["fifo"])
