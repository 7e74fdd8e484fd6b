"""What a release said of the held-out rows, and the figures that sum it up.

Needs neither pandas nor onnxruntime: the gate reads it before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from presage.models.calibration.error_metrics import interval_metrics, point_metrics
from presage.system.arrays import Array, Mask, Names

Figures = dict[str, float]


@dataclass(frozen=True)
class Interval:
    """Ends of the interval of one coverage, each of shape (rows,)."""

    low: Array
    high: Array

    def scores(self, measured: Array, coverage: float) -> Array:
        """Interval score of each row: the width, and what a miss costs.

        No interval but the true one has a lower mean, in the long run.

        References
        ----------
        Gneiting, Raftery: Strictly Proper Scoring Rules, Prediction, and Estimation, Journal of
        the American Statistical Association 102(477), 2007, section 6.2.
        """
        outside = np.maximum(self.low - measured, 0) + np.maximum(measured - self.high, 0)
        out: Array = self.high - self.low + 2 / (1 - coverage) * outside
        return out


@dataclass(frozen=True)
class HoldoutForecasts:
    """One predictor's forecasts of the held-out rows, beside what was measured.

    Attributes
    ----------
    jobs, families, devices : ndarray of str, shape (rows,)
        Whose rows they are; rows of one job err together.
    measured, median : ndarray of shape (rows,)
        In the target's unit.
    intervals : mapping of float to Interval
        By coverage.
    in_domain : ndarray of bool, shape (rows,)
        Which the release vouches for.
    latency_us : float
        Of one row, on one thread.
    """

    jobs: Names
    families: Names
    devices: Names
    measured: Array
    median: Array
    intervals: Mapping[float, Interval]
    in_domain: Mask
    latency_us: float

    def figures(self) -> Figures:
        """``rows`` and ``jobs``, point metrics, each interval's coverage, width and score."""
        with np.errstate(divide="ignore", invalid="ignore"):  # a device that did nothing: 0 %
            found: Figures = {"jobs": len(set(self.jobs))}
            found |= point_metrics(self.measured, self.median)
            for coverage, ends in self.intervals.items():
                of_interval = interval_metrics(self.measured, ends.low, ends.high)
                found |= {f"{name}_{coverage:.0%}": value for name, value in of_interval.items()}
                some = self.measured != 0
                scores = ends.scores(self.measured, coverage)[some] / np.abs(self.measured[some])
                found[f"interval_score_{coverage:.0%}"] = 100 * float(scores.mean())
        found["in_domain"] = 100 * float(self.in_domain.mean())
        return found | {"latency_us": self.latency_us}


@dataclass(frozen=True)
class ScoredRelease:
    """A release as the gate sees it.

    Attributes
    ----------
    predictors : mapping of str to HeldOut
    size_bytes : int
        Of its files.
    trained_on : frozenset of str, or None
        Digests of the jobs that it was trained on; None where it does not say.
    """

    predictors: Mapping[str, HoldoutForecasts]
    size_bytes: int
    trained_on: frozenset[str] | None

    def figures(self) -> dict[str, Figures]:
        """Figures by predictor."""
        return {name: held_out.figures() for name, held_out in self.predictors.items()}

    def judged_jobs(self) -> list[str]:
        """Jobs that any predictor is judged by, in order."""
        return sorted(set().union(*(held_out.jobs for held_out in self.predictors.values())))
