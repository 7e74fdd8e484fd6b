"""Offsets of a release with known forecasts, learned from outcomes and withdrawn with them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.forecast import DEVICE, JOB_ON_DEVICE
from presage.features.placement import Placement
from presage.serving.codec.wire_outcomes import write_report
from presage.serving.offsets.offset_learner import OffsetLearner
from presage.serving.outcomes.judged import Judge
from presage.serving.outcomes.outcome import Outcome
from presage.serving.predictor.predictor import Predictor

SLOWER = 1.3


@pytest.fixture(scope="module")
def predictor(release):
    return Predictor(release)


@pytest.fixture
def jobs(job):
    return [job(batch_size=size) for size in (4, 8, 16, 32, 64, 128)]


def outcomes(predictor, jobs, device, times, *, prefix=""):
    """Return one outcome of every job, whose step takes its forecast times a factor."""
    placements = [Placement(one, device) for one in jobs]
    return [
        Outcome(
            f"{prefix}{i}", one.job, device, release_id=predictor.release_id,
            step_time_median_s=times * forecast.step_time_s.median,
        )
        for i, (one, forecast) in enumerate(
            zip(placements, predictor.predict(placements), strict=True)
        )
    ]  # fmt: skip


def learned(predictor, reported):
    learner = OffsetLearner()
    for run in Judge(predictor).judge_runs(write_report(reported).outcomes):
        learner.add(run)
    return learner


def step(predictor, job, device):
    return predictor.predict([Placement(job, device)])[0].step_time_s


def test_without_outcomes_nothing_changes(predictor, jobs, cpu):
    corrected = predictor.with_offsets(OffsetLearner().offsets())

    assert step(corrected, jobs[0], cpu) == step(predictor, jobs[0], cpu)


def test_a_slower_device_moves_the_whole_interval_of_other_jobs(predictor, jobs, job, cpu):
    found = learned(predictor, outcomes(predictor, jobs, cpu, SLOWER))
    corrected = predictor.with_offsets(found.offsets())

    before, after = (step(one, job(batch_size=100), cpu) for one in (predictor, corrected))

    factor = after.median / before.median
    assert 1.15 < factor < SLOWER
    assert (after.low / before.low, after.high / before.high) == pytest.approx((factor, factor))
    assert after.correction.factor == pytest.approx(factor)
    assert (after.correction.runs, after.correction.source) == (6, DEVICE)
    assert before.correction is None


def test_a_job_that_ran_gets_almost_its_own_error(predictor, jobs, cpu):
    reported = [
        replace(one, idempotency_key=f"{i}/{one.idempotency_key}")
        for i in range(4)
        for one in outcomes(predictor, jobs, cpu, SLOWER)
    ]
    corrected = predictor.with_offsets(learned(predictor, reported).offsets())

    after = step(corrected, jobs[2], cpu)

    assert after.median / step(predictor, jobs[2], cpu).median == pytest.approx(SLOWER, rel=0.02)
    assert (after.correction.runs, after.correction.source) == (4, JOB_ON_DEVICE)


def test_run_times_follow_step_times(predictor, jobs, cpu):
    corrected = predictor.with_offsets(
        learned(predictor, outcomes(predictor, jobs, cpu, SLOWER)).offsets()
    )

    (forecast,) = corrected.predict([Placement(jobs[0], cpu)])

    steps = jobs[0].job.iterations * forecast.step_time_s.median
    assert forecast.runtime_s.median == pytest.approx(30 + steps)
    assert forecast.runtime_s.correction == forecast.step_time_s.correction


def test_another_device_gets_only_the_offset_of_the_job(predictor, jobs, job, cpu):
    corrected = predictor.with_offsets(
        learned(predictor, outcomes(predictor, jobs, cpu, SLOWER)).offsets()
    )
    elsewhere = replace(cpu, kind="cpu-2b")

    known, unknown = (step(corrected, one, elsewhere) for one in (jobs[0], job(batch_size=100)))

    assert known.correction.source == "job"
    assert unknown.correction is None
    assert unknown == step(predictor, job(batch_size=100), elsewhere)


def test_intervals_on_a_new_device_shrink_with_the_runs_but_not_below_those_of_a_known_one(
    predictor, jobs, job, cpu
):
    elsewhere = replace(cpu, kind="cpu-2b")
    asked = job(batch_size=100)

    def width(one, device):
        forecast = step(one, asked, device)
        return math.log(forecast.high / forecast.low)

    widths = [width(predictor, elsewhere)]
    for runs in (1, 3, 6):
        reported = outcomes(predictor, jobs[:runs], elsewhere, 1.0)
        found = learned(predictor, reported).offsets()
        widths.append(width(predictor.with_offsets(found), elsewhere))

    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.85 * widths[0]
    assert widths[-1] >= width(predictor, cpu)


def test_a_withdrawn_outcome_leaves_no_trace(predictor, jobs, cpu):
    kept = outcomes(predictor, jobs[:3], cpu, 1.1, prefix="kept/")
    wrong = outcomes(predictor, jobs, cpu, 1.9, prefix="wrong/")
    found = learned(predictor, [*kept, *wrong])

    for one in wrong:
        found.withdraw(one.idempotency_key)

    forecasts = [
        step(predictor.with_offsets(one.offsets()), jobs[1], cpu)
        for one in (found, learned(predictor, kept))
    ]
    assert forecasts[0].median == pytest.approx(forecasts[1].median, rel=1e-6)
    assert len(found) == 3


def test_withdrawing_everything_gives_the_release_again(predictor, jobs, cpu):
    reported = outcomes(predictor, jobs, cpu, SLOWER)
    found = learned(predictor, reported)
    for one in reported:
        found.withdraw(one.idempotency_key)

    corrected = predictor.with_offsets(found.offsets())

    assert step(corrected, jobs[0], cpu) == step(predictor, jobs[0], cpu)


def test_an_outcome_that_is_reported_again_counts_once(predictor, jobs, cpu):
    reported = outcomes(predictor, jobs, cpu, SLOWER)
    found = learned(predictor, reported)
    for run in Judge(predictor).judge_runs(write_report(reported).outcomes):
        found.add(run)

    assert len(found) == len(jobs)


@pytest.mark.parametrize("times", [0.0, 1e-3, 1e3, 1e30])
def test_a_measurement_in_a_wrong_unit_is_counted_and_changes_nothing(predictor, jobs, cpu, times):
    found = learned(predictor, outcomes(predictor, jobs, cpu, times))

    assert (len(found), found.implausible) == (0, len(jobs))
    assert not found.offsets()


def test_all_quantities_are_corrected_within_their_bounds(predictor, jobs, cpu):
    reported = [
        Outcome(
            str(i), one, cpu, release_id=predictor.release_id, compute_utilization=0.9,
            memory_peak_bytes=int(1.2 * forecast.memory_bytes.median),
        )
        for i, (one, forecast) in enumerate(
            zip(jobs, predictor.predict([Placement(one, cpu) for one in jobs]), strict=True)
        )
    ]  # fmt: skip
    corrected = predictor.with_offsets(learned(predictor, reported).offsets())

    (before,), (after,) = (one.predict([Placement(jobs[0], cpu)]) for one in (predictor, corrected))
    assert 1.1 < after.memory_bytes.median / before.memory_bytes.median < 1.2
    assert before.compute_utilization.median < after.compute_utilization.median < 0.9
    assert after.compute_utilization.high <= 1


def pairs(predictor, one, other, device, times):
    """Return a solo run, and runs of two jobs together that are slower than their forecast."""
    solo = predictor.predict([Placement(one, device)])[0].step_time_s.median
    pair = Colocation(device, (one, other), (Share(), Share()))
    slowdown = predictor.predict_interference([pair])[0].slowdowns[0].median
    of_release = {"release_id": predictor.release_id}
    return [
        Outcome("solo", one, device, step_time_median_s=solo, **of_release),
        Outcome(
            "pair", one, device, step_time_median_s=times * slowdown * solo,
            colocated_jobs=((other, Share()),), **of_release,
        ),
    ]  # fmt: skip


def slowdowns(predictor, jobs, device):
    (found,) = predictor.predict_interference(
        [Colocation(device, tuple(jobs), (Share(),) * len(jobs))]
    )
    return found.slowdowns


def test_a_pair_that_ran_together_gets_its_slowdown(predictor, jobs, cpu):
    found = learned(predictor, pairs(predictor, jobs[0], jobs[1], cpu, 1.4))
    corrected = predictor.with_offsets(found.offsets())

    before, after = (slowdowns(one, jobs[:2], cpu) for one in (predictor, corrected))

    assert 1.2 < after[0].median / before[0].median < 1.4
    assert after[0].correction.source == JOB_ON_DEVICE
    others = [slowdowns(one, (jobs[0], jobs[3]), cpu)[0].median for one in (predictor, corrected)]
    assert 1 < others[1] / others[0] < after[0].median / before[0].median


def test_a_slowdown_is_never_corrected_below_one(predictor, jobs, cpu):
    found = learned(predictor, pairs(predictor, jobs[0], jobs[1], cpu, 0.5))
    corrected = predictor.with_offsets(found.offsets())

    forecast = slowdowns(corrected, jobs[:2], cpu)[0]

    assert (forecast.low, forecast.median) == (1, 1)
    assert slowdowns(corrected, jobs[:1], cpu)[0].median == 1


def test_rows_of_one_request_are_corrected_each_on_its_own(predictor, jobs, cpu):
    elsewhere = replace(cpu, kind="cpu-2b")
    found = learned(predictor, outcomes(predictor, jobs, elsewhere, SLOWER))
    corrected = predictor.with_offsets(found.offsets())
    asked = [Placement(jobs[0], cpu), Placement(jobs[0], elsewhere)]

    together = [one.step_time_s for one in corrected.predict(asked)]

    each = [corrected.predict([one])[0].step_time_s for one in asked]
    for one, other in zip(together, each, strict=True):
        np.testing.assert_allclose(
            (one.low, one.median, one.high), (other.low, other.median, other.high)
        )
        assert one.correction.source == other.correction.source
