"""Errors of run-time forecasts, learnt from the jobs whose run times are known.

A forecast is a median and an upper bound. They give the logarithm of a run time a mean and a
standard deviation, its spread; an error is the logarithm of the true run time over the median, in
units of that spread. Jobs of one equivalence class err alike, and so do classes, because a release
is wrong about a device or an operator as a whole. Errors that were drawn independently would cancel
in a queue, and the intervals of a start would be too narrow.

Equal jobs differ for other reasons than forecasts err (devices, data, other jobs), so the standard
deviation of the logarithm of their run times is the same in all classes, whatever the spread.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from operator import mul
from random import Random
from statistics import NormalDist, fmean
from typing import NamedTuple

from presage.schedulers.core.forecasts import RuntimePrediction

_NORMAL = NormalDist()
LEAST_SPREAD = 0.02  # of an interval, as standard deviation of the logarithm
# Variances before any run time is known: of errors common to all classes and of those of a class,
# in squared spreads, and of the logarithm of the run times of equal jobs, whose deviation is 8 % on
# average and 22 % at most on five clusters (Sinha et al., Not All GPUs Are Created Equal, SC 2022).
_COMMON, _CLASS, _NOISE = 0.5, 0.45, 0.01
_CLASS_COUNT, _NOISE_COUNT = 4.0, 1.0  # observations that the prior variances are worth
_CANDIDATES = 32  # errors of a class from which one is drawn that agrees with its running jobs
_TAIL = 6.0  # deviations above which the normal tail is replaced by its exponential bound


def log_spread(prediction: RuntimePrediction, high_quantile: float) -> float:
    """Return the standard deviation of a run time's logarithm; 0 without an upper bound.

    Parameters
    ----------
    high_quantile : float
        Probability that the run time is below ``high_s``.
    """
    high_s, median_s = prediction.high_s, prediction.runtime_s
    if high_s is None or not 0 < median_s < high_s < math.inf:
        return 0.0
    return max(LEAST_SPREAD, math.log(high_s / median_s) / _NORMAL.inv_cdf(high_quantile))


class Observed(NamedTuple):
    """Job whose run time is known.

    Attributes
    ----------
    key : hashable
        Its equivalence class.
    error : float
        In units of ``spread``.
    spread : float
        Standard deviation of the logarithm of its run time by its forecast.
    forecast_s : float
        Its median forecast.
    """

    key: Hashable
    error: float
    spread: float
    forecast_s: float


class ForecastErrors:
    """Distribution of errors, given the observed ones.

    Parameters
    ----------
    observed : iterable of Observed
        Jobs whose run times are known. Their forecasts are their weights: long jobs decide when
        devices are free, and errors of short ones are larger. True run times as weights would count
        jobs that took longer than others twice.

    Attributes
    ----------
    count : int
        Number of observed errors.
    """

    def __init__(self, observed: Iterable[Observed]) -> None:
        by_class: dict[Hashable, list[Observed]] = {}
        for one in observed:
            by_class.setdefault(one.key, []).append(one)
        self.count = sum(map(len, by_class.values()))
        # Mean error of each class, and its precision times the variance of equal jobs.
        self._means: dict[Hashable, tuple[float, float]] = {}
        within = freedom = 0.0
        for key, found in by_class.items():
            most_s = max(one.forecast_s for one in found)
            weights = [one.forecast_s / most_s for one in found]
            # Equal variation is a larger error in units of a smaller spread, so it counts less.
            precise = [weight * one.spread**2 for weight, one in zip(weights, found, strict=True)]
            mean = fmean([one.error for one in found], precise)
            self._means[key] = mean, sum(precise) ** 2 / sum(map(mul, weights, precise))
            count = sum(weights) ** 2 / sum(map(mul, weights, weights))
            squares = [(one.spread * (one.error - mean)) ** 2 for one in found]
            within += count * fmean(squares, weights)
            freedom += count - 1.0
        self._noise = _variance(_NOISE, _NOISE_COUNT, within, freedom)
        means = [mean for mean, _ in self._means.values()]
        inexact = [self._noise / information for _, information in self._means.values()]
        freedom = max(0.0, len(means) - 1.0)
        between = freedom * _variance_between(means, inexact) if freedom else 0.0
        self._class = _variance(_CLASS, _CLASS_COUNT, between, freedom)
        precisions = [1 / (self._class + variance) for variance in inexact]
        precision = 1 / _COMMON + sum(precisions)
        self._common = sum(map(mul, precisions, means)) / precision, 1 / math.sqrt(precision)

    def has_observed(self, key: Hashable) -> bool:
        """Return whether the run time of a job of a class is known."""
        return key in self._means

    def draw_common(self, rng: Random) -> float:
        """Return an error that all classes have in common."""
        return rng.gauss(*self._common)

    def draw_of_class(
        self,
        key: Hashable,
        common: float,
        rng: Random,
        least: Sequence[tuple[float, float]] = (),
    ) -> float:
        """Return an error that the jobs of a class have in common.

        Parameters
        ----------
        least : sequence of (float, float)
            Lower bounds of the errors of running jobs of the class, and the spreads of their
            forecasts: they have run for so long.
        """
        mean, information = self._means.get(key, (0.0, 0.0))
        precision = 1 / self._class + information / self._noise
        center = (common / self._class + information * mean / self._noise) / precision
        if not least:
            return rng.gauss(center, 1 / math.sqrt(precision))
        drawn = [rng.gauss(center, 1 / math.sqrt(precision)) for _ in range(_CANDIDATES)]
        deviation = math.sqrt(self._noise)
        weights = [
            math.prod(_NORMAL.cdf((error - bound) * spread / deviation) for bound, spread in least)
            for error in drawn
        ]
        return rng.choices(drawn, weights)[0] if sum(weights) > 0 else max(drawn)

    def draw_of_job(
        self, of_class: float, spread: float, rng: Random, least: float = -math.inf
    ) -> float:
        """Return the error of a job whose class has an error and its forecast a spread.

        It is at least ``least``.
        """
        deviation = math.sqrt(self._noise) / spread
        if least == -math.inf:
            return rng.gauss(of_class, deviation)
        return of_class + deviation * _above((least - of_class) / deviation, rng)


def _variance(prior: float, prior_count: float, squares: float, count: float) -> float:
    """Return the variance by observed squares and the prior."""
    return (prior_count * prior + squares) / (prior_count + count)


def _variance_between(means: Sequence[float], inexact: Sequence[float]) -> float:
    """Return the variance of the true values of some means, each with a variance of its own.

    By DerSimonian and Laird: Meta-analysis in clinical trials, Controlled Clinical Trials 7(3),
    1986.
    """
    weights = [1 / variance for variance in inexact]
    center, total = fmean(means, weights), sum(weights)
    squares = sum(w * (mean - center) ** 2 for w, mean in zip(weights, means, strict=True))
    scale = total - sum(weight**2 for weight in weights) / total
    return max(0.0, squares - (len(means) - 1)) / scale


def _above(bound: float, rng: Random) -> float:
    """Return a draw from the standard normal distribution above a bound."""
    uniform = 1.0 - rng.random()  # within (0, 1]
    if bound > _TAIL:
        return bound - math.log(uniform) / bound
    return max(bound, -_NORMAL.inv_cdf(max(1e-300, uniform * _NORMAL.cdf(-bound))))
