"""Prediction of live jobs from measured phases."""

from __future__ import annotations

import pytest

from presage.collectives.simulation.compare import run_rules
from presage.collectives.simulation.live_jobs import (
    MeasuredCall,
    MeasuredJob,
    phased_job,
    predict_jobs,
)
from presage.collectives.simulation.phased_job import Way
from tests.collectives.simulation.jobs import LINK, phased


def measure(job, *, slower=1.0, count=6):
    """Return what a rank of the job measures without contention, by ring."""
    iterations, now_s = [], 5.0
    for _ in range(count):
        begin_s, calls = now_s, []
        for position, call in enumerate(job.calls):
            queued_s = begin_s + call.offset_s
            start_s = max(queued_s, now_s)
            now_s = start_s + slower * job.duration_s(Way.RING, position)
            calls.append(MeasuredCall(queued_s, start_s, now_s, call.size_bytes))
        iterations.append(calls)
    return MeasuredJob(job.job_id, job.ranks, job.switches, iterations)


def test_predictions_are_those_of_the_job_that_was_measured():
    jobs = [phased("a"), phased("b", compute_s=0.3, ranks=8)]
    expected = run_rules(jobs, {"s": 1}, duration_s=60)
    found = predict_jobs([measure(job) for job in jobs], {"s": 1}, LINK)

    assert found.keys() == expected.keys()
    for rule, outcomes in expected.items():
        for name, outcome in outcomes.items():
            assert found[rule][name].iteration_s == pytest.approx(outcome.iteration_s, rel=0.02)


def test_a_ring_that_is_slower_than_its_cost_is_predicted_as_measured():
    job = phased()
    found = predict_jobs([measure(job, slower=1.3)], {"s": 1}, LINK, rules=("ring", "own-switch"))
    ring_s = 0.5 + 1.3 * (job.solo_s(Way.RING) - 0.5)

    assert found["ring"]["a"].iteration_s == pytest.approx(ring_s, rel=1e-3)
    assert found["own-switch"]["a"].iteration_s == pytest.approx(job.solo_s(Way.INC), rel=1e-3)


def test_measured_durations_on_the_switch_are_used():
    job = MeasuredJob("a", 4, ("s",), measure(phased()).iterations, inc_s=(0.12, 0.24))
    found = predict_jobs([job], {"s": 1}, LINK, rules=("own-switch",))

    assert found["own-switch"]["a"].iteration_s == pytest.approx(0.86, rel=1e-3)


def test_fewer_than_three_equal_iterations_are_rejected():
    few = measure(phased(), count=2)
    other = measure(phased(sizes=(5, 6)), count=1).iterations
    mixed = MeasuredJob("a", 4, ("s",), [*measure(phased()).iterations, *other])

    for job in (few, mixed):
        with pytest.raises(ValueError, match="three iterations"):
            phased_job(job, LINK)
