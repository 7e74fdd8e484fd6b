"""Forecast of a job's steps at several placements: predicted, then fitted to its measured steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from presage.errors import InvalidJobError
from presage.features.forecast import Forecast
from presage.features.job.batch_scaling import with_batch_size
from presage.features.job.job_description import JobFeatures
from presage.features.scaling.scaling_fit import ScalingFit
from presage.features.scaling.scaling_law import ScaledSteps, ScalingLaw
from presage.features.scaling.scaling_request import (
    ScalingForecast,
    ScalingForecasts,
    ScalingRequest,
)
from presage.system.arrays import Array

MOST_GROWTH = 2  # largest number of GPUs over the largest measured one that is no extrapolation
# Batch sizes for which the step on one GPU is predicted; it is smooth in between. Scaling the
# features of a job with many operator rows is slow, so these jobs have fewer.
_BATCHES, _FEWER_BATCHES, _MANY_OPS = 8, 3, 500
_LEAST_COVERAGE, _MOST_COVERAGE = 0.01, 0.999
_NORMAL = NormalDist()


def solo_jobs(request: ScalingRequest) -> dict[int, JobFeatures]:
    """Return the job with batch sizes between which those of all placements are interpolated."""
    batches = [max(1.0, request.batch_of(one)) for one in request.every_placement()]
    low, high = math.floor(min(batches)), math.ceil(max(batches))
    # Without its id, which errors would repeat.
    job = replace(request.job, job=replace(request.job.job, job_id=""))
    count = _FEWER_BATCHES if len(request.job.op_stats) > _MANY_OPS else _BATCHES
    sizes = {low, high, *np.geomspace(low, high, count).round().astype(int).tolist()}
    return {size: with_batch_size(job, size) for size in sorted(sizes)}


def forecast_scaling(
    law: ScalingLaw,
    request: ScalingRequest,
    solo_s: Mapping[int, Forecast],
    *,
    coverage: float,
    fitted: bool,
) -> ScalingForecasts:
    """Return the forecasts of all placements.

    Parameters
    ----------
    solo_s : mapping of int to Forecast
        Predicted step on one GPU by batch size, for each of :func:`solo_jobs`.
    coverage : float
        Coverage of the intervals, 0.01 to 0.999.
    fitted : bool
        Whether the law comes with the release.

    Raises
    ------
    InvalidJobError
        The coverage is out of range.
    """
    if not _LEAST_COVERAGE <= coverage <= _MOST_COVERAGE:  # false for NaN
        raise InvalidJobError(
            f"coverage={coverage}, must be within {_LEAST_COVERAGE:g} and {_MOST_COVERAGE:g}"
        )
    steps = _steps(law, request, solo_s)
    first, last = 1, 1 + len(request.placements)
    measured_s = np.array([one.step_time_s for one in request.measured], dtype=np.float64)
    fit = ScalingFit(law, steps.rows(slice(last, None)), measured_s)
    log_s, covariance = fit.predict(steps.rows(slice(0, last)))
    of_solo = solo_s[min(solo_s)]
    width = _NORMAL.inv_cdf((1 + coverage) / 2)
    in_domain = all(one.in_domain for one in solo_s.values())
    ratio = of_solo.domain_error_ratio

    def forecast(log_value: float, deviation: float, unit: str) -> Forecast:
        median, error = math.exp(log_value), width * deviation
        low, high = median * math.exp(-error), median * math.exp(error)
        return Forecast(
            median, low, high, unit, in_domain, of_solo.release_id, coverage,
            domain_error_ratio=ratio,
        )  # fmt: skip

    forecasts = []
    most = MOST_GROWTH * request.largest_measured
    for i in range(first, last):
        variance = max(0.0, covariance[i, i]) + law.noise**2
        step = forecast(log_s[i], math.sqrt(variance), "seconds")
        samples = math.log(_samples(steps, i) / _samples(steps, 0))
        deviation = _speedup_deviation(covariance, i)
        speedup = forecast(log_s[0] - log_s[i] + samples, deviation, "speed-up")
        forecasts.append(
            ScalingForecast(
                step, speedup, float(steps.sync_share[i]), request.placements[i - 1].gpus > most
            )
        )
    return ScalingForecasts(tuple(forecasts), of_solo.release_id, coverage, fitted)


def _speedup_deviation(covariance: Array, position: int) -> float:
    """Return the deviation of the log ratio of a size to the first one."""
    own, first = covariance[position, position], covariance[0, 0]
    return math.sqrt(max(0.0, own + first - 2 * covariance[0, position]))


def _samples(steps: ScaledSteps, position: int) -> float:
    return float(steps.batch[position] * steps.gpus[position])


def _steps(law: ScalingLaw, request: ScalingRequest, solo_s: Mapping[int, Forecast]) -> ScaledSteps:
    """Return the predicted steps of the requested, the wanted and the measured placements."""
    every = list(request.every_placement())
    gpus = np.array([one.gpus for one in every], dtype=np.float64)
    nodes = np.array([one.nodes for one in every], dtype=np.float64)
    batch = np.array([request.batch_of(one) for one in every])
    compute_s = np.exp(
        np.interp(
            np.log(batch),
            np.log(np.array(sorted(solo_s))),
            np.log([solo_s[size].median for size in sorted(solo_s)]),
        )
    )
    return law.steps(compute_s, request.gradient_bytes, gpus, nodes, batch)
