"""Requests for the scaling of a job, and the forecasts of their placements."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from presage.errors import InvalidJobError
from presage.features.device.device import catalogue
from presage.features.forecast import Forecast
from presage.features.scaling.scaling_forecast import forecast_scaling, solo_jobs
from presage.features.scaling.scaling_law import DEFAULT_LAW
from presage.features.scaling.scaling_request import (
    MAX_SIZES,
    GpuPlacement,
    MeasuredStep,
    ScalingForecasts,
    ScalingRequest,
)
from tests.serving.conftest import make_job

JOB = replace(make_job(batch_size=32), parameters=100_000_000)
T4 = catalogue()["t4"]


def request_of(*placements: GpuPlacement, **changes: object) -> ScalingRequest:
    return replace(ScalingRequest(JOB, T4, placements or (GpuPlacement(2),)), **changes)  # type: ignore[arg-type]


def answer(request: ScalingRequest, coverage: float = 0.8) -> ScalingForecasts:
    """Return forecasts of a job that takes 10 ms for each sample on one GPU."""
    steps = {
        size: Forecast(0.01 * size, 0.009 * size, 0.011 * size, "seconds", True, "id")
        for size in solo_jobs(request)
    }
    return forecast_scaling(DEFAULT_LAW, request, steps, coverage=coverage, fitted=False)


def test_the_requested_placement_has_a_speedup_of_exactly_1():
    (found,) = answer(request_of(GpuPlacement(4), requested=GpuPlacement(4))).forecasts

    assert (found.speedup.low, found.speedup.median, found.speedup.high) == (1.0, 1.0, 1.0)
    assert found.step_time_s.low < found.step_time_s.median < found.step_time_s.high
    assert found.step_time_s.median > 0.32


def test_all_gpus_together_process_the_requested_batch_by_default():
    (near, apart) = answer(request_of(GpuPlacement(2), GpuPlacement(2, 2))).forecasts

    assert 0.16 < near.step_time_s.median < apart.step_time_s.median
    assert near.speedup.median == pytest.approx(0.32 / near.step_time_s.median, rel=1e-6)
    assert 0 < near.sync_share < apart.sync_share < 1


def test_with_a_batch_per_gpu_speedups_count_samples():
    (found,) = answer(request_of(GpuPlacement(2, 1, batch_size=32))).forecasts

    assert found.step_time_s.median > 0.32
    assert found.speedup.median == pytest.approx(0.64 / found.step_time_s.median, rel=1e-6)


def test_batches_between_whole_ones_are_interpolated():
    steps = [
        answer(request_of(GpuPlacement(1, 1, batch_size=size))).forecasts[0].step_time_s.median
        for size in (4, 4.5, 5, 0.1)
    ]

    assert steps == pytest.approx([0.04, 0.045, 0.05, 0.01], rel=0.01)


def test_few_batch_sizes_are_predicted_and_fewer_of_a_job_with_many_operator_rows():
    sizes = tuple(GpuPlacement(gpus) for gpus in range(1, 65))
    request = ScalingRequest(make_job(batch_size=4096), T4, sizes)
    many = replace(request.job, op_stats=request.job.op_stats * 300)

    assert 2 < len(solo_jobs(request)) <= 10
    assert len(solo_jobs(replace(request, job=many))) == 3


def test_measured_steps_correct_the_others_and_narrow_their_intervals():
    before = answer(request_of(GpuPlacement(4))).forecasts[0].step_time_s
    measured = tuple(MeasuredStep(GpuPlacement(gpus), 0.64 / gpus) for gpus in (1, 2))
    after = answer(request_of(GpuPlacement(4), measured=measured)).forecasts[0].step_time_s

    assert before.median < after.median
    assert after.high / after.low < before.high / before.low


def test_far_more_gpus_than_measured_are_extrapolated():
    sizes = (GpuPlacement(2), GpuPlacement(3), GpuPlacement(8), GpuPlacement(9, 3))
    measured = (MeasuredStep(GpuPlacement(4), 0.1),)

    def flags(request: ScalingRequest) -> list[bool]:
        return [one.extrapolated for one in answer(request).forecasts]

    assert flags(request_of(*sizes)) == [False, True, True, True]
    assert flags(request_of(*sizes, measured=measured)) == [False, False, False, True]


def test_a_higher_coverage_widens_the_intervals():
    narrow, wide = (
        answer(request_of(), coverage).forecasts[0].step_time_s for coverage in (0.5, 0.9)
    )

    assert wide.low < narrow.low < narrow.high < wide.high
    assert (narrow.coverage, wide.coverage) == (0.5, 0.9)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, math.nan, 2.0])
def test_an_impossible_coverage_is_rejected(coverage):
    with pytest.raises(InvalidJobError, match="coverage"):
        answer(request_of(), coverage)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"placements": ()}, "placements has 0"),
        ({"placements": (GpuPlacement(1),) * (MAX_SIZES + 1)}, "placements has 257"),
        ({"placements": (GpuPlacement(1), GpuPlacement(0))}, r"placements\[1\].gpus=0"),
        ({"placements": (GpuPlacement(2, 3),)}, r"placements\[0\].nodes=3"),
        ({"placements": (GpuPlacement(2, 0),)}, r"placements\[0\].nodes=0"),
        ({"placements": (GpuPlacement(1, 1, math.nan),)}, r"placements\[0\].batch_size=nan"),
        ({"placements": (GpuPlacement(1, 1, -1.0),)}, r"placements\[0\].batch_size=-1"),
        (
            {"requested": GpuPlacement(1, 1, 5e-324)},
            r"requested.batch_size=5e-324, must be within 0.001",
        ),
        ({"placements": (GpuPlacement(1, 1, math.inf),)}, r"placements\[0\].batch_size=inf"),
        ({"requested": GpuPlacement(10**6)}, "requested.gpus=1000000"),
        ({"requested": GpuPlacement(60_000, 1, 1e12)}, "samples on each GPU"),
        *(
            ({"measured": (MeasuredStep(GpuPlacement(1), bad),)}, r"measured\[0\].step_time_s")
            for bad in (0.0, -1.0, math.nan, math.inf, -math.inf, 1e300)
        ),
        (
            {"measured": (MeasuredStep(GpuPlacement(1, 2), 1.0),)},
            r"measured\[0\].placement.nodes=2",
        ),
        ({"measured": (MeasuredStep(GpuPlacement(1), 1.0),) * 257}, "measured has 257"),
    ],
)
def test_an_impossible_request_is_rejected_by_field(changes, field):
    with pytest.raises(InvalidJobError, match=field):
        request_of(**changes)
