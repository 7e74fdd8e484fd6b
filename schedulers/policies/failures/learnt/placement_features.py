"""Observations of a learned policy: features of the jobs that can start, and of the cluster.

All values are ratios, so that one scorer serves clusters of any size and jobs of any length. The
training computes the same values in :mod:`presage.placement.learnt.observation`; a test compares
both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from presage.schedulers.policies.failures.completion import expected_completion_s
from presage.schedulers.policies.failures.device_order import Devices, Mask
from presage.schedulers.policies.failures.learnt.placement_view import DOWN, IDLE, PlacementView
from presage.system.arrays import Array

JOB_FEATURES = (
    "log_runtime", "gpus", "log_size", "risk", "log_stretch", "log_least_stretch", "wait_gain",
    "rank", "has_checkpoint", "idle_after",
)  # fmt: skip
CLUSTER_FEATURES = (
    "idle", "down", "pending", "log_area", "next_release", "log_risk", "idle_risk",
)  # fmt: skip
MOST_GAIN, LEAST_GAIN = 2.0, 0.1  # bounds of the feature wait_gain
LEAST_S = 1e-6  # expected completion of a job that has no work left


class Observed(NamedTuple):
    """Observation of a view with J jobs.

    Attributes
    ----------
    jobs : ndarray of shape (J, len(JOB_FEATURES))
        Features of the jobs that can start; 0 for others.
    cluster : ndarray of shape (len(CLUSTER_FEATURES),)
    allowed : ndarray of bool, shape (J + 1,)
        Which jobs can start; at last, whether the policy may wait: while a job runs.
    ranked : sequence of int
        Pending jobs in the order of the rule.
    """

    jobs: Array
    cluster: Array
    allowed: Mask
    ranked: list[int]


class Release(NamedTuple):
    """Devices that are free at a later time.

    Attributes
    ----------
    delay_s : float
        Time until then.
    rates_per_s : ndarray of shape (M + 1,)
        Total failure rate of the safest 0, 1, ... M free devices.
    """

    delay_s: float
    rates_per_s: Array


class Pool:
    """Devices that a kind of jobs may use, by rising failure rate.

    Attributes
    ----------
    idle : ndarray of int
        Idle devices.
    here, least : ndarray
        Total failure rate of the safest 0, 1, ... idle devices; and of those that are not down.
    releases : list of Release
        Free devices after each predicted end of a running job, by time.
    """

    def __init__(self, view: PlacementView, allowed: Mask) -> None:
        order = view.safest[allowed[view.safest]]
        holder, rates = view.holder[order], view.rates_per_s[order]
        self.idle: Devices = order[holder == IDLE]
        self.here = _totals(rates[holder == IDLE])
        self.least = _totals(rates[holder != DOWN])
        self.releases: list[Release] = []
        is_free = holder == IDLE
        for k in np.argsort(view.end_s, kind="stable"):
            if view.end_s[k] == math.inf:
                break
            is_free |= holder == k
            self.releases.append(
                Release(float(view.end_s[k]) - view.now_s, _totals(rates[is_free]))
            )


class Observer:
    """Observation of one view, and the action of the analytic rule there.

    Parameters
    ----------
    exponent : float
        The rule's order is by falling ``t * n**exponent`` with the remaining run time t.
    patience : float
        Factor by which the expected completion must be earlier for a job to wait.
    """

    def __init__(self, view: PlacementView, exponent: float, patience: float) -> None:
        self.view, self._exponent, self._patience = view, exponent, patience
        self._pools: dict[tuple[str, ...], Pool] = {}

    def pool(self, j: int) -> Pool:
        """Return the devices that a job may use."""
        kinds = tuple(sorted(self.view.jobs[j].kinds or ()))
        if kinds not in self._pools:
            self._pools[kinds] = Pool(self.view, self.view.allowed[j])
        return self._pools[kinds]

    def observe(self) -> Observed:
        """Return the observation."""
        view = self.view
        scale_s, cluster = self._cluster_values()
        jobs = np.zeros((len(view.jobs), len(JOB_FEATURES)))
        allowed = np.zeros(len(view.jobs) + 1, bool)
        allowed[-1] = view.is_running.any()
        ranked = self._ranked()
        for i, j in enumerate(ranked):
            if view.gpus[j] <= len(self.pool(j).idle):
                allowed[j] = True
                jobs[j] = self._job_values(j, i / len(ranked), scale_s)
        return Observed(jobs, cluster, allowed, ranked)

    def rule_action(self, candidates: Mask, ranked: list[int]) -> int:
        """Return the candidate that the rule starts next, or the number of jobs if it waits."""
        for j in ranked:
            if candidates[j] and not self.waits(j):
                return j
        return len(self.view.jobs)

    def waits(self, j: int) -> bool:
        """Return whether a job is expected to end earlier on devices that jobs will release."""
        here_s = self.here_s(j)
        limit_s = here_s * self._patience
        for delay_s, later_s in self._later_s(j):
            if delay_s >= limit_s:
                return False
            if later_s < limit_s:
                return True
        return False

    def here_s(self, j: int) -> float:
        """Return the expected completion of a job on the safest idle devices."""
        here_s = self._completion_s(j, float(self.pool(j).here[self.view.gpus[j]]))
        return max(LEAST_S, here_s)

    def best_later_s(self, j: int) -> float:
        """Return the earliest expected completion on devices that jobs will release."""
        return min((later_s for _, later_s in self._later_s(j)), default=math.inf)

    def _later_s(self, j: int) -> Iterator[tuple[float, float]]:
        """Yield the time of each release, and the expected completion if the job starts then."""
        n = self.view.gpus[j]
        for delay_s, totals in self.pool(j).releases:
            rate = float(totals[min(n, len(totals) - 1)])
            yield delay_s, delay_s + self._completion_s(j, rate)

    def _completion_s(self, j: int, rate_per_s: float) -> float:
        view = self.view
        return expected_completion_s(
            view.remaining_s(j), rate_per_s, float(view.interval_s[j]), float(view.cost_s[j]),
            float(view.restart_s[j]), view.repair_s,
        )  # fmt: skip

    def _ranked(self) -> list[int]:
        """Return the pending jobs in the order of the rule."""
        view = self.view
        pending = np.flatnonzero(~view.is_running).tolist()
        sizes = [-view.remaining_s(j) * float(view.gpus[j]) ** self._exponent for j in pending]
        return [pending[i] for i in np.argsort(np.array(sizes), kind="stable").tolist()]

    def _cluster_values(self) -> tuple[float, Array]:
        """Return the scale of times, in seconds, and the features of the cluster."""
        view, devices = self.view, len(self.view.holder)
        left_s = np.where(
            view.is_running, view.end_s - view.now_s, (1.0 - view.saved) * view.runtime_s
        )
        area_s = float((view.gpus * left_s / devices).sum())
        scale_s = max(area_s, 1.0, float(left_s.max(initial=1.0)))
        next_s = float(left_s[view.is_running].min(initial=math.inf))
        idle = view.safest[view.holder[view.safest] == IDLE]
        rate = float((view.rates_per_s / devices).sum())
        idle_rate = float(view.rates_per_s[idle].sum()) / max(1, len(idle))
        return scale_s, np.array(
            [
                len(idle) / devices,
                np.count_nonzero(view.holder == DOWN) / devices,
                np.count_nonzero(~view.is_running) / len(view.jobs),
                math.log(max(area_s, 1.0) / scale_s),
                min(next_s, scale_s) / scale_s,
                math.log(rate * scale_s + 1e-6) / 5,
                math.log((idle_rate + 1e-12) / (rate + 1e-12)) / 5,
            ]
        )

    def _job_values(self, j: int, rank: float, scale_s: float) -> list[float]:
        """Return the features of a job that can start."""
        view, pool, devices = self.view, self.pool(j), len(self.view.holder)
        n = int(view.gpus[j])
        left_s = max(1.0, view.remaining_s(j))
        here_s = self.here_s(j)
        least = float(pool.least[min(n, len(pool.least) - 1)])
        least_s = max(LEAST_S, self._completion_s(j, least))
        return [
            math.log(left_s / scale_s),
            n / devices,
            math.log(n * left_s / (devices * scale_s)) / 3,
            min(3.0, float(pool.here[n]) * min(left_s, float(view.interval_s[j]))),
            min(3.0, math.log(here_s / left_s)),
            min(3.0, math.log(least_s / left_s)),
            math.log(self._wait_gain(j, here_s)),
            rank,
            1.0 if view.saved[j] > 0 else 0.0,
            (len(pool.idle) - n) / devices,
        ]

    def _wait_gain(self, j: int, here_s: float) -> float:
        """Return the best expected completion if a job waits over that if it starts."""
        best = MOST_GAIN
        for delay_s, later_s in self._later_s(j):
            if delay_s >= here_s * best:
                break
            best = min(best, later_s / here_s)
        return max(best, LEAST_GAIN)


def _totals(rates_per_s: Array) -> Array:
    """Return the sums of the first 0, 1, ... rates."""
    found: Array = np.concatenate([[0.0], np.cumsum(rates_per_s)])
    return found
