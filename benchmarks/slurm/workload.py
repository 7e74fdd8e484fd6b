"""Jobs of the replay, what their users request, and what is predicted of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

MINUTE_S = 60.0
DEFAULT_MINUTES = 24 * 60  # of users who request none
_ROUND_MINUTES = (30, 60, 120, 240, 480, DEFAULT_MINUTES)
_GPUS, _SHARES = (1, 2, 4, 8), (0.6, 0.15, 0.15, 0.1)
_MEDIAN_S, _SPREAD = 10 * MINUTE_S, 1.1
_LEAST_S, _MOST_S = MINUTE_S, 180 * MINUTE_S
ERROR = 0.2  # standard deviation of the logarithm of predicted over true run time
_Z90 = 1.2816


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """Job of a replay.

    Attributes
    ----------
    submit_s, runtime_s : float
        Time of submission from the begin, and true run time.
    quantile_s : float
        Predicted 90 % quantile of the run time, which is calibrated.
    median_s : float
        Predicted median of the run time.
    """

    index: int
    submit_s: float
    runtime_s: float
    gpus: int
    quantile_s: float
    median_s: float


def make_jobs(seed: int, count: int, *, devices: int, load: float) -> list[ReplayJob]:
    """Return jobs that arrive at random and would use a fraction ``load`` of the devices."""
    random = np.random.default_rng(seed)
    runtime_s = np.clip(random.lognormal(math.log(_MEDIAN_S), _SPREAD, count), _LEAST_S, _MOST_S)
    gpus = random.choice(_GPUS, count, p=_SHARES)
    span_s = float((runtime_s * gpus).sum()) / devices / load
    submit_s = np.sort(random.uniform(0, span_s, count))
    median_s = runtime_s * np.exp(ERROR * random.standard_normal(count))
    quantile_s = median_s * math.exp(ERROR * _Z90)
    rows = zip(submit_s, runtime_s, gpus, quantile_s, median_s, strict=True)
    return [
        ReplayJob(i, float(at_s), float(run_s), int(devices), float(high_s), float(half_s))
        for i, (at_s, run_s, devices, high_s, half_s) in enumerate(rows)
    ]


def _rounded(job: ReplayJob) -> int:
    needed = 1.5 * job.runtime_s / MINUTE_S
    return next(minutes for minutes in _ROUND_MINUTES if minutes >= needed)


def minutes_of(seconds: float) -> int:
    """Return a time limit that is not below a time."""
    return max(1, math.ceil(seconds / MINUTE_S))


# Time limit in minutes that a user requests.
USERS: Mapping[str, Callable[[ReplayJob], int]] = {
    "default": lambda job: DEFAULT_MINUTES,
    "rounded": _rounded,
    "4x": lambda job: minutes_of(4 * job.runtime_s),
}
