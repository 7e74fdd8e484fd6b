"""Paired bootstrap over held-out jobs: the uncertainty of a change between two releases.

Both releases forecast the same rows. Jobs are drawn with replacement, the same draws for both, with
all rows of a job, because errors of rows of one job are correlated. A job that is hard to predict
is hard for both releases, so most of the noise cancels in the difference. The standard deviation of
the difference over the draws is its standard error. Its interval is Student's t, with one degree of
freedom less than jobs. Percentiles of the draws would be too narrow with few jobs, and two thousand
draws cannot resolve the tails that many simultaneous comparisons need.

References
----------
Cameron, Gelbach, Miller: Bootstrap-based improvements for inference with clustered errors,
Review of Economics and Statistics 90(3), 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.models.gate.holdout_forecasts import HoldoutForecasts
from presage.system.arrays import Array, Int64s, Mask

ALL_ROWS = ""  # name of the slice of all rows
SLICE_METRICS = (
    "mape",
    "interval_score_90%",
)  # one figure of medians, one of intervals

_MEAN, _ROOT, _MEDIAN = "mean", "root of mean", "median"
_MAX_WEIGHTS = 2_000_000  # held in memory at once for medians


@dataclass(frozen=True, slots=True)
class Change:
    """Figure of both releases on the same rows.

    Attributes
    ----------
    predictor : str
    slice_name : str
        Slice, such as ``device cpu-2`` or ``family cnn``; "" for all rows.
    metric : str
    jobs : int
        Number of jobs in the slice.
    champion, challenger : float
        Figures of the two releases.
    rise_error : float
        Standard error of the rise.
    """

    predictor: str
    slice_name: str
    metric: str
    jobs: int
    champion: float
    challenger: float
    rise_error: float

    @property
    def rise(self) -> float:
        """Challenger's figure minus the champion's."""
        return self.challenger - self.champion

    def interval(self, risk: float) -> tuple[float, float]:
        """Return an interval of the true rise, with error probability ``risk`` on each side."""
        from scipy.special import stdtrit

        reach = float(-stdtrit(self.jobs - 1, risk)) * self.rise_error
        return self.rise - reach, self.rise + reach


def paired_changes(
    champion: Mapping[str, HoldoutForecasts],
    challenger: Mapping[str, HoldoutForecasts],
    *,
    resamples: int,
    seed: int,
    min_jobs: int,
) -> Iterator[Change]:
    """Yield every figure of every predictor on all rows, and ``SLICE_METRICS`` on every slice.

    Parameters
    ----------
    champion, challenger : mapping of predictor to HoldoutForecasts
        Forecasts of the same rows in the same order. Predictors of only one release are skipped.
    resamples : int
        Draws of the jobs.
    seed : int
        Seed of the draws.
    min_jobs : int
        Fewest jobs of a slice. A slice is a family or a device, unless it has all rows.
    """
    for predictor, ours in challenger.items():
        if (theirs := champion.get(predictor)) is None:
            continue
        assert np.array_equal(ours.jobs, theirs.jobs), "both are scored on the same rows"
        before, after = _columns(theirs), _columns(ours)
        for name, rows in _slices(ours, min_jobs):
            for metric in SLICE_METRICS if name else after:
                kind, new = after[metric]
                old = before[metric][1]
                found = _change(kind, old[rows], new[rows], ours.jobs[rows], resamples, seed)
                if found is not None:
                    yield Change(predictor, name, metric, *found)


def _slices(held_out: HoldoutForecasts, min_jobs: int) -> Iterator[tuple[str, Mask]]:
    """Yield all rows, then each family and each device that does not have all rows."""
    yield ALL_ROWS, np.ones(len(held_out.jobs), bool)
    for kind, group_of_row in (("family", held_out.families), ("device", held_out.devices)):
        for value in sorted(set(group_of_row)):
            rows = group_of_row == value
            if not rows.all() and len(set(held_out.jobs[rows])) >= min_jobs:
                yield f"{kind} {value}", rows


def _columns(held_out: HoldoutForecasts) -> dict[str, tuple[str, Array]]:
    """Return, for each figure, how it aggregates and its value per row, NaN where undefined."""
    y, median = held_out.measured, held_out.median
    scale = np.where(y == 0, np.nan, np.abs(y))
    relative = np.abs(median - y) / scale
    log_error = np.log1p(np.maximum(median, 0)) - np.log1p(y)
    found: dict[str, tuple[str, Array]] = {
        "mape": (_MEAN, 100 * relative),
        "median_ape": (_MEDIAN, 100 * relative),
        "within_10pct": (_MEAN, np.where(np.isnan(relative), np.nan, 100.0 * (relative <= 0.1))),
        "mae": (_MEAN, np.abs(median - y)),
        "rmsle": (_ROOT, log_error**2),
        "in_domain": (_MEAN, np.where(held_out.in_domain, 100.0, 0.0)),
    }
    for coverage, ends in held_out.intervals.items():
        scores = ends.scores(y, coverage)
        found[f"interval_width_{coverage:.0%}"] = (_MEDIAN, 100 * (ends.high - ends.low) / scale)
        found[f"interval_score_{coverage:.0%}"] = (_MEAN, 100 * scores / scale)
    return found


def _change(
    kind: str, old: Array, new: Array, jobs: Any, resamples: int, seed: int
) -> tuple[int, float, float, float] | None:
    """Return jobs, both figures and the rise's standard error; None for fewer than two jobs."""
    is_defined = np.isfinite(old) & np.isfinite(new)
    names, job = np.unique(jobs[is_defined].astype(str), return_inverse=True)
    if len(names) < 2:
        return None
    # A new generator, so a figure's interval does not depend on the other comparisons.
    draws = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=resamples
    )
    counts = np.vstack([np.ones(len(names), np.int64), draws])  # the first is the sample
    before, after = (_figure(kind, values[is_defined], job, counts) for values in (old, new))
    rises = (after - before)[1:]
    # The bootstrap variance is too small by the factor (n - 1) / n.
    spread = float(rises.std()) * math.sqrt(len(names) / (len(names) - 1))
    return len(names), float(before[0]), float(after[0]), spread


def _figure(kind: str, values: Array, job: Int64s, counts: Int64s) -> Array:
    """Return a figure under each draw, given the counts (draws, jobs) of drawn jobs."""
    if kind == _MEDIAN:
        return _weighted_medians(values, job, counts)
    sums = np.bincount(job, values, minlength=counts.shape[1])
    means: Array = (counts @ sums) / (counts @ np.bincount(job, minlength=counts.shape[1]))
    return np.sqrt(means) if kind == _ROOT else means


def _weighted_medians(values: Array, job: Int64s, counts: Int64s) -> Array:
    """Return the median under each draw; for an even number of rows, the mean of the middle two."""
    order = np.argsort(values, kind="stable")
    values, job = values[order], job[order]
    out = np.empty(len(counts))
    step = max(1, _MAX_WEIGHTS // len(values))
    for start in range(0, len(counts), step):
        part = slice(start, start + step)
        up_to = np.cumsum(counts[part][:, job], axis=1)
        half = up_to[:, -1:] / 2
        lower, upper = (up_to >= half).argmax(axis=1), (up_to > half).argmax(axis=1)
        out[part] = (values[lower] + values[upper]) / 2
    return out
