"""Aggregation of samples to steps, as clients request them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from presage.errors import InvalidRequestError
from presage.schedulers.live.controller.history.history_file import MINUTE_S, ROWS, Row
from presage.schedulers.live.controller.history.history_sample import Sample
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_POINTS = 2_000
_MAX_STEP_S = 86_400
_DEFAULT_SPAN_S = 3_600
# Values of a moment; the others are counts of a minute.
_STATES = (
    "devices", "devices_in_use", "allocated_devices", "used_devices", "waiting_jobs",
    "running_jobs", "slo_violated_jobs",
)  # fmt: skip
_READINGS = ("hottest_c", "power_w")  # 0 for unknown


def requested_minutes(request: pb.HistoryRequest, now_unix_s: float) -> tuple[int, int, int]:
    """Return the first and last minute of a request, and the minutes of a step.

    The first step contains ``from_unix_s``, the last one ``to_unix_s``.

    Raises
    ------
    InvalidRequestError
        The times or the step are not valid, or there are too many steps.
    """
    for name in ("from_unix_s", "to_unix_s", "step_s"):
        value = getattr(request, name)
        if not (math.isfinite(value) and value >= 0):
            raise InvalidRequestError(f"{name}: {value:g} is no time; give seconds, at least 0")
    step_s = request.step_s or MINUTE_S
    if step_s % MINUTE_S or step_s > _MAX_STEP_S:
        raise InvalidRequestError(
            f"step_s: {step_s:g} is not a multiple of {MINUTE_S} up to {_MAX_STEP_S}; round it"
        )
    to_s = request.to_unix_s or now_unix_s
    from_s = request.from_unix_s or max(0.0, to_s - _DEFAULT_SPAN_S)
    if from_s > to_s:
        raise InvalidRequestError(f"from_unix_s: {from_s:.0f} is after {to_s:.0f}; exchange them")
    # There are no samples before these times, however early the request begins.
    from_s = max(from_s, now_unix_s - ROWS * MINUTE_S)
    to_s = max(from_s, min(to_s, now_unix_s + _MAX_STEP_S))
    steps = int(to_s // step_s) - int(from_s // step_s) + 1
    if steps > MAX_POINTS:
        raise InvalidRequestError(
            f"step_s: {steps:,} steps of {step_s:g} s, the maximum is {MAX_POINTS:,}; give a "
            "longer step or a shorter time"
        )
    minutes = int(step_s // MINUTE_S)
    first = int(from_s // step_s) * minutes
    return first, (int(to_s // step_s) + 1) * minutes - 1, minutes


def make_points(
    rows: Iterable[Row], step_minutes: int, *, has_errors: bool
) -> list[pb.HistoryPoint]:
    """Return a point for each step with samples.

    A point has the mean, the least and the greatest value of states, and the sums of counts.

    Parameters
    ----------
    rows : iterable of Row
        In order.
    has_errors : bool
        Whether points have the errors of forecasts.
    """
    steps = groupby(rows, key=lambda row: row.minute // step_minutes)
    return [
        _point(step * step_minutes * MINUTE_S, [row.sample for row in group], has_errors=has_errors)
        for step, group in steps
    ]


def _point(time_unix_s: float, samples: Sequence[Sample], *, has_errors: bool) -> pb.HistoryPoint:
    point = pb.HistoryPoint(
        time_unix_s=time_unix_s,
        samples=len(samples),
        finished_jobs=round(sum(one.finished_jobs for one in samples)),
        failed_jobs=round(sum(one.failed_jobs for one in samples)),
    )
    for name in _STATES:
        getattr(point, name).CopyFrom(_sampled([getattr(one, name) for one in samples]))
    for name in _READINGS:
        known = [value for one in samples if (value := getattr(one, name))]
        if known:
            getattr(point, name).CopyFrom(_sampled(known))
    if has_errors:
        jobs = round(sum(one.predicted_jobs for one in samples))
        errors = math.fsum(one.error_sum for one in samples)
        point.forecast_errors.CopyFrom(
            pb.ForecastErrors(
                jobs=jobs,
                mean=errors / jobs if jobs else 0.0,
                greatest=max(one.greatest_error for one in samples),
                beyond_bound=round(sum(one.beyond_bound_jobs for one in samples)),
            )
        )
    return point


def _sampled(values: Sequence[float]) -> pb.SampledValue:
    mean = min(max(math.fsum(values) / len(values), min(values)), max(values))
    return pb.SampledValue(mean=mean, least=min(values), greatest=max(values))
