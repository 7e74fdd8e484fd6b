"""How sure a change between two releases is: a paired bootstrap of the held-out jobs.

Both releases answer the same rows. Jobs are drawn with replacement, the same draws for both, and
a job brings all its rows: rows of one job err together, and what makes a job hard to foretell
makes it hard for both, so that most of the noise falls out of the difference. The spread of the
difference over the draws is its standard error; its interval is Student's, with one degree of
freedom less than there are jobs. Ends taken from the draws themselves would be too near on few
jobs, and the far ends that many comparisons at once ask for are beyond two thousand draws.

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

ALL_ROWS = ""  # the slice of all rows
SLICE_METRICS = (
    "mape",
    "interval_score_90%",
)  # of a slice: one figure of medians, one of intervals

_MEAN, _ROOT, _MEDIAN = "mean", "root of mean", "median"
_MAX_WEIGHTS = 2_000_000  # weights that medians are computed of


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both releases on the same rows.

    Attributes
    ----------
    slice_name : str
        Such as ``device cpu-2`` or ``family cnn``; "" of all rows.
    jobs : int
        That the rows are of.
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
        """Challenger's figure less champion's."""
        return self.challenger - self.champion

    def interval(self, risk: float) -> tuple[float, float]:
        """Ends that the true rise is beyond, on either side, with a chance of ``risk``."""
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
    """Every figure of every predictor on all rows, and those of ``SLICE_METRICS`` on every slice.

    Slices are the families and the devices with at least ``min_jobs`` jobs, but not all of them.

    Parameters
    ----------
    champion, challenger : mapping of predictor to HeldOut
        Of the same rows in the same order; one that only one release has is left out.
    resamples, seed : int
        How many draws of the jobs, and of which generator.
    """
    for predictor, ours in challenger.items():
        if (theirs := champion.get(predictor)) is None:
            continue
        assert np.array_equal(ours.jobs, theirs.jobs), "both are judged by the same rows"
        both = _columns(theirs), _columns(ours)
        for name, rows in _slices(ours, min_jobs):
            wanted = SLICE_METRICS if name else both[1]
            for metric in wanted:
                kind, new = both[1][metric]
                old = both[0][metric][1]
                found = _change(kind, old[rows], new[rows], ours.jobs[rows], resamples, seed)
                if found is not None:
                    yield Change(predictor, name, metric, *found)


def _slices(held_out: HoldoutForecasts, min_jobs: int) -> Iterator[tuple[str, Mask]]:
    """All rows, then each family and each device that is not all of them."""
    yield ALL_ROWS, np.ones(len(held_out.jobs), bool)
    for kind, of_row in (("family", held_out.families), ("device", held_out.devices)):
        for value in sorted(set(of_row)):
            rows = of_row == value
            if not rows.all() and len(set(held_out.jobs[rows])) >= min_jobs:
                yield f"{kind} {value}", rows


def _columns(held_out: HoldoutForecasts) -> dict[str, tuple[str, Array]]:
    """Of each figure, how it sums up, and a value of each row; NaN where there is none."""
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
    """Jobs, both figures and the rise's standard error; None of fewer than two jobs."""
    told = np.isfinite(old) & np.isfinite(new)
    names, job = np.unique(jobs[told].astype(str), return_inverse=True)
    if len(names) < 2:
        return None
    # A generator of its own: a figure's interval does not depend on what else is compared.
    draws = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=resamples
    )
    counts = np.vstack([np.ones(len(names), np.int64), draws])  # the first is what was measured
    before, after = (_figure(kind, values[told], job, counts) for values in (old, new))
    of_draws = (after - before)[1:]
    # Of jobs drawn with replacement the spread is that of n - 1 over n.
    spread = float(of_draws.std()) * math.sqrt(len(names) / (len(names) - 1))
    return len(names), float(before[0]), float(after[0]), spread


def _figure(kind: str, values: Array, job: Int64s, counts: Int64s) -> Array:
    """A figure under each draw, by how often it drew each job, (draws, jobs) -> (draws,)."""
    if kind == _MEDIAN:
        return _weighted_medians(values, job, counts)
    sums = np.bincount(job, values, minlength=counts.shape[1])
    means: Array = (counts @ sums) / (counts @ np.bincount(job, minlength=counts.shape[1]))
    return np.sqrt(means) if kind == _ROOT else means


def _weighted_medians(values: Array, job: Int64s, counts: Int64s) -> Array:
    """Median under each draw; of an even number of rows the mean of the two in the middle."""
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
