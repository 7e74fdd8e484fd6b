"""Forecasts of a release for the held-out rows, and their metrics ("figures").

This module needs neither pandas nor onnxruntime, so the gate can import it early.
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
        """Return the interval score of each row: the width plus a penalty for a miss.

        The expected score is lowest for the true quantiles.

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
    """Forecasts of one predictor for the held-out rows, with the measurements.

    Attributes
    ----------
    jobs, families, devices : ndarray of str, shape (rows,)
        Job, family and device of each row; errors of rows of one job are correlated.
    measured, median : ndarray of shape (rows,)
        Measurements and medians, in the target's unit.
    intervals : mapping of float to Interval
        Intervals by coverage.
    in_domain : ndarray of bool, shape (rows,)
        Whether the release reports the row as in domain.
    latency_us : float
        Microseconds of a forecast of one row, on one thread.
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
        """Return ``rows``, ``jobs``, point metrics, and coverage, width and score of intervals."""
        with np.errstate(divide="ignore", invalid="ignore"):  # a utilization of 0 %
            found: Figures = {"jobs": len(set(self.jobs))}
            found |= point_metrics(self.measured, self.median)
            for coverage, ends in self.intervals.items():
                metrics = interval_metrics(self.measured, ends.low, ends.high)
                found |= {f"{name}_{coverage:.0%}": value for name, value in metrics.items()}
                is_used = self.measured != 0
                scores = ends.scores(self.measured, coverage)[is_used]
                scores = scores / np.abs(self.measured[is_used])
                found[f"interval_score_{coverage:.0%}"] = 100 * float(scores.mean())
        found["in_domain"] = 100 * float(self.in_domain.mean())
        return found | {"latency_us": self.latency_us}


@dataclass(frozen=True)
class ScoredRelease:
    """Facts about a release that the gate decides by.

    Attributes
    ----------
    predictors : mapping of str to HoldoutForecasts
        Forecasts by predictor.
    size_bytes : int
        Size of its files.
    trained_on : frozenset of str, or None
        Digests of the training jobs; None if the release does not record them.
    unscored : frozenset of str
        Optional quantities that it predicts, but that no held-out row has a measurement of.
    """

    predictors: Mapping[str, HoldoutForecasts]
    size_bytes: int
    trained_on: frozenset[str] | None
    unscored: frozenset[str] = frozenset()

    def figures(self) -> dict[str, Figures]:
        """Return the figures by predictor."""
        return {name: held_out.figures() for name, held_out in self.predictors.items()}

    def judged_jobs(self) -> list[str]:
        """Return the held-out jobs of any predictor, sorted."""
        return sorted(set().union(*(held_out.jobs for held_out in self.predictors.values())))
