"""Batches of jobs and the failures of the GPUs that they run on, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.system.arrays import Array

HOUR_S = 3600.0
Ints = NDArray[np.int64]


class Batches(NamedTuple):
    """B independent batches of J jobs, each on a cluster of its own with N GPUs.

    Attributes
    ----------
    gpus : ndarray of int, shape (B, J)
        Number of GPUs that each job needs at once.
    runtime_s : ndarray of shape (B, J)
        Run time without failures and without checkpoints.
    submit_s : ndarray of shape (B, J)
        Submission time; not falling within a batch.
    interval_s, cost_s, restart_s : ndarray of shape (B, J)
        Time between checkpoints (infinite for none), to write one, and to restart from one.
    fails_s, repaired_s : ndarray of shape (B, N, K)
        Start and end of the outages of each GPU, disjoint and by time. The last one is infinite.
    hazard_per_s : ndarray of shape (B, N)
        Failure rate of each GPU as policies know it.
    repair_s : ndarray of shape (B,)
        Mean time to repair as policies know it.
    """

    gpus: Ints
    runtime_s: Array
    submit_s: Array
    interval_s: Array
    cost_s: Array
    restart_s: Array
    fails_s: Array
    repaired_s: Array
    hazard_per_s: Array
    repair_s: Array


def take_batches(batches: Batches, numbers: Ints) -> Batches:
    """Return the batches of these numbers, which may repeat."""
    found: list[Any] = [values[numbers] for values in batches]
    return Batches(*found)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Distributions from which batches are drawn; times in hours.

    Attributes
    ----------
    gpus, jobs : int
        Number of GPUs and of jobs.
    job_gpus : tuple of int
        Gang sizes, equally likely.
    runtime_h, runtime_spread : float
        Median of the lognormal run time, and the standard deviation of its logarithm.
    mtbf_h : float
        Mean time between failures of a GPU, as the inverse of the mean failure rate.
    rate_spread : float
        Standard deviation of the logarithm of a GPU's failure rate; 0 if all GPUs are equal.
    mttr_h, repair_spread : float
        Mean of the lognormal time to repair, and the standard deviation of its logarithm.
    shape : float
        Shape of the Weibull time to failure; 1 is exponential.
    interval_h, cost_h, restart_h : float
        Checkpoints of every job; an infinite interval for none.
    arrivals_per_h : float
        Rate of submissions; infinite if all jobs are submitted at 0.
    estimate_h : float
        Length of the history from which policies estimate the rates; infinite for true rates.
    drift_h : float
        Mean time until a GPU's rate is drawn again; infinite for constant rates.
    """

    gpus: int = 16
    jobs: int = 24
    job_gpus: tuple[int, ...] = (1, 2, 4, 8)
    runtime_h: float = 8.0
    runtime_spread: float = 0.8
    mtbf_h: float = 100.0
    rate_spread: float = 1.3
    mttr_h: float = 2.0
    repair_spread: float = 0.5
    shape: float = 1.0
    interval_h: float = math.inf
    cost_h: float = 0.0
    restart_h: float = 0.0
    arrivals_per_h: float = math.inf
    estimate_h: float = math.inf
    drift_h: float = math.inf

    def __post_init__(self) -> None:
        for field in ("runtime_h", "mtbf_h", "mttr_h", "shape"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(f"{field}={getattr(self, field)}, must be a finite number > 0")
        for field in ("interval_h", "arrivals_per_h", "estimate_h", "drift_h"):
            if not getattr(self, field) > 0:
                raise ConfigError(f"{field}={getattr(self, field)}, must be a number > 0")
        for field in ("runtime_spread", "rate_spread", "repair_spread", "cost_h", "restart_h"):
            if not 0 <= getattr(self, field) < math.inf:
                raise ConfigError(f"{field}={getattr(self, field)}, must be a finite number >= 0")
        if self.jobs < 1 or not self.job_gpus or min(self.job_gpus) < 1:
            raise ConfigError(f"jobs={self.jobs} of {self.job_gpus} GPUs; both must be >= 1")
        if max(self.job_gpus) > self.gpus:
            raise ConfigError(
                f"jobs of {max(self.job_gpus)} GPUs on {self.gpus}; a job must fit on the cluster"
            )


STRESS = BatchSettings()
CHECKPOINTS = replace(STRESS, interval_h=2.0, cost_h=1 / 60, restart_h=0.25)


def draw_batches(
    settings: BatchSettings, batches: int, *, seed: int, cluster_seed: int | None = None
) -> Batches:
    """Draw batches, each with its own jobs, failure rates and failures.

    Parameters
    ----------
    cluster_seed : int, optional
        Seed of the failure rates of one cluster, on which all batches then run.
    """
    rng = np.random.default_rng(seed)
    shape = batches, settings.jobs
    gpus = rng.choice(np.array(settings.job_gpus), shape)
    spread = settings.runtime_spread
    runtime_s = HOUR_S * settings.runtime_h * rng.lognormal(0.0, spread, shape)
    submit_s = np.zeros(shape)
    if settings.arrivals_per_h < math.inf:
        gaps_h = rng.exponential(1 / settings.arrivals_per_h, shape)
        submit_s = HOUR_S * np.cumsum(gaps_h, axis=1)
    rates = draw_rates(settings, batches, rng)
    if cluster_seed is not None:
        one = draw_rates(settings, 1, np.random.default_rng(cluster_seed))
        rates = np.repeat(one, batches, axis=0)
    work_s = (gpus * runtime_s).sum(axis=1) / settings.gpus + runtime_s.max(axis=1)
    horizon_s = float((submit_s.max(axis=1) + 10 * work_s).max())
    fails_s, repaired_s = draw_outages(settings, rates, horizon_s, rng)
    known = rates
    if settings.estimate_h < math.inf:
        known = estimate_rates(rates, settings.estimate_h * HOUR_S, rng)
    return Batches(
        gpus, runtime_s, submit_s,
        np.full(shape, HOUR_S * settings.interval_h),
        np.full(shape, HOUR_S * settings.cost_h),
        np.full(shape, HOUR_S * settings.restart_h),
        fails_s, repaired_s, known, np.full(batches, HOUR_S * settings.mttr_h),
    )  # fmt: skip


def draw_rates(settings: BatchSettings, batches: int, rng: np.random.Generator) -> Array:
    """Return failure rates per second of shape (B, N), with a mean of ``1 / mtbf_h``."""
    spread = settings.rate_spread
    factors = rng.lognormal(-(spread**2) / 2, spread, (batches, settings.gpus))
    rates: Array = factors / (settings.mtbf_h * HOUR_S)
    return rates


def draw_outages(
    settings: BatchSettings, rates: Array, horizon_s: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return starts and ends of the outages before ``horizon_s``, each of shape (B, N, K).

    All GPUs are up at 0 and as good as new.
    """
    starts, ends = [], []
    now_s, rates = np.zeros(rates.shape), rates.copy()
    scale = 1 / math.gamma(1 + 1 / settings.shape)
    sigma = settings.repair_spread
    while True:
        fails_s = now_s + scale / rates * rng.weibull(settings.shape, rates.shape)
        repair_s = HOUR_S * settings.mttr_h * rng.lognormal(-(sigma**2) / 2, sigma, rates.shape)
        is_past = fails_s >= horizon_s
        starts.append(np.where(is_past, math.inf, fails_s))
        ends.append(np.where(is_past, math.inf, fails_s + repair_s))
        if is_past.all():
            break
        if settings.drift_h < math.inf:
            elapsed_s = fails_s + repair_s - now_s
            is_new = rng.random(rates.shape) < 1 - np.exp(-elapsed_s / (settings.drift_h * HOUR_S))
            rates = np.where(is_new, draw_rates(settings, len(rates), rng), rates)
        now_s = fails_s + repair_s
    return np.stack(starts, axis=-1), np.stack(ends, axis=-1)


def estimate_rates(rates: Array, history_s: float, rng: np.random.Generator) -> Array:
    """Return rates estimated from the failures of a history, shrunk towards their mean.

    The estimate is the posterior mean under a gamma prior with the mean and the weight of one
    failure, so that a GPU without failures keeps a rate above 0.
    """
    failures = rng.poisson(rates * history_s)
    mean = np.maximum(failures.mean(axis=1, keepdims=True), 0.5) / history_s
    estimates: Array = (failures + 1.0) / (history_s + 1.0 / mean)
    return estimates
