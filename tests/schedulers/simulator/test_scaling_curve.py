"""Measured speed-up curves: what is between measurements, and which are rejected."""

from __future__ import annotations

import math
from typing import cast

import pytest

from presage.errors import TableError
from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.speedup import SpeedupRequest
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.scaling_curve import ScalingCurve, ScalingRow
from tests.schedulers.clusters import job

ROWS = (
    ScalingRow(1, 1, 10, 1.0), ScalingRow(1, 1, 20, 1.8),
    ScalingRow(1, 2, 10, 1.1), ScalingRow(1, 2, 20, 2.0),
    ScalingRow(2, 2, 10, 1.5), ScalingRow(2, 2, 20, 2.2),
    ScalingRow(2, 4, 10, 2.5), ScalingRow(2, 4, 20, 3.0),
)  # fmt: skip


@pytest.fixture
def curve():
    return ScalingCurve(ROWS, "m")


def test_measured_steps_are_kept(curve):
    assert curve.step_s(10, 1, 1) == 1.0
    assert curve.step_s(20, 2, 1) == 1.1
    assert curve.step_s(40, 2, 2) == 2.2


def test_the_batch_of_a_device_is_interpolated(curve):
    assert curve.step_s(15, 1, 1) == pytest.approx(1.4)
    assert curve.step_s(4, 2, 1) == 1.1  # below those measured: as long as the smallest


def test_a_batch_that_is_too_large_is_split_into_micro_batches(curve):
    assert curve.step_s(40, 1, 1) == pytest.approx(2 * 1.8)
    assert curve.step_s(80, 2, 1) == pytest.approx(1.8 + 2.0)  # synchronized once


def test_no_placement_is_more_consolidated_than_those_measured(curve):
    assert curve.step_s(40, 4, 1) == curve.step_s(40, 4, 2) == 2.5


def test_other_sizes_are_interpolated_and_never_faster_than_the_largest(curve):
    assert curve.step_s(30, 3, 2) == pytest.approx((1.5 + 0.0 + 2.5) / 2)
    assert curve.step_s(40, 3, 3) == curve.step_s(40, 3, 2)  # three nodes count as two, the most
    assert curve.step_s(80, 8, 2) == curve.step_s(80, 4, 2)


def test_a_curve_that_falls_with_more_devices_is_kept_as_measured(curve):
    assert curve.step_s(20, 2, 2) > curve.step_s(20, 1, 1) * 0.8
    assert curve.step_s(20, 4, 2) > curve.step_s(20, 2, 1)


@pytest.mark.parametrize("step_s", [math.inf, math.nan, 0.0, -1.0])
def test_a_curve_with_an_invalid_step_is_rejected(step_s):
    with pytest.raises(TableError, match=r"m on 2 devices has a step of .* must be a finite"):
        ScalingCurve([*ROWS, ScalingRow(1, 2, 10, step_s)], "m")


def test_a_curve_without_a_step_on_one_device_is_rejected():
    with pytest.raises(TableError, match="no step on one device"):
        ScalingCurve([ScalingRow(1, 2, 10, 1.0)], "m")


def test_jobs_run_at_the_speed_of_their_models_curve(curve):
    measured = Measurements(
        features={"m": cast(JobFeatures, _Features())},
        step_s={("m", "t4"): 1.0},
        scaling={("m", "t4"): curve},
    )
    one = job("a", gpus=2, model="m")
    truth = MeasuredTruth({"a": 110.0}, measured, "t4", scaling="measured")
    linear = MeasuredTruth({"a": 110.0}, measured, "t4")

    assert truth.solo_s(one, "t4", 2) == linear.solo_s(one, "t4", 2) == 110.0
    assert truth.solo_s(one, "t4", 1) == pytest.approx(180.0)
    assert linear.solo_s(one, "t4", 1) == 220.0
    assert truth.spread(one, "t4", 2, 2) == pytest.approx(1.5 / 1.1)
    speedups = Table(measured).speedups(
        [SpeedupRequest(one, "t4", 1, 1, 1), SpeedupRequest(job("b", model="x"), "t4", 1, 1, 1)]
    )
    assert speedups[0] is not None and speedups[0].median == pytest.approx(110 / 180)
    assert speedups[1] is None
    with pytest.raises(ValueError, match="scaling='x', must be one of linear, measured"):
        MeasuredTruth({}, measured, "t4", scaling="x")


class _Features:
    """Features of a model with a batch of 10."""

    class job:  # noqa: N801
        batch_size = 10
