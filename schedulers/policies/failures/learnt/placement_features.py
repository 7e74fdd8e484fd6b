"""Observations of a learned policy: features of the jobs that can start, and of the cluster.

All values are ratios, so that one scorer serves clusters of any size and jobs of any length. The
training computes the same values in :mod:`presage.placement.learnt.observation`; a test compares
both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from presage.schedulers.policies.failures.completion import expected_completions_s
from presage.schedulers.policies.failures.learnt.device_pool import Pool
from presage.schedulers.policies.failures.learnt.placement_view import DOWN, IDLE, PlacementView
from presage.system.arrays import Array, Int64s

JOB_FEATURES = (
    "log_runtime", "gpus", "log_size", "risk", "log_stretch", "log_least_stretch", "wait_gain",
    "rank", "has_checkpoint", "idle_after",
)  # fmt: skip
CLUSTER_FEATURES = (
    "idle", "down", "pending", "log_area", "next_release", "log_risk", "idle_risk",
)  # fmt: skip
MOST_GAIN, LEAST_GAIN = 2.0, 0.1  # bounds of the feature wait_gain
LEAST_S = 1e-6  # expected completion of a job that has no work left
_LOGS = [0, 2, 4, 5, 6]  # columns of features that are logarithms
_BOUNDED = slice(3, 6)  # columns of features that are at most 3


class Observed(NamedTuple):
    """Observation of a view, with the M pending jobs that can start.

    Attributes
    ----------
    fit : ndarray of int, shape (M,)
        Positions of these jobs in the view, rising.
    rank : ndarray of int, shape (M,)
        Their positions in the order of the rule, among all pending jobs.
    jobs : ndarray of shape (M, len(JOB_FEATURES))
    cluster : ndarray of shape (len(CLUSTER_FEATURES),)
    may_wait : bool
        Whether the policy may wait: while a job runs.
    rates_per_s : ndarray of shape (M,)
        Failure rate of each gang on the safest idle devices.
    here_s, later_s : ndarray of shape (M,)
        Expected completion there; and the earliest one on devices that running jobs will release,
        infinite if there are none.
    """

    fit: Int64s
    rank: Int64s
    jobs: Array
    cluster: Array
    may_wait: bool
    rates_per_s: Array
    here_s: Array
    later_s: Array


class _Expected(NamedTuple):
    """Failure rate on the safest idle devices, and expected completions, of shape (M,) each."""

    rates_per_s: Array
    here_s: Array
    least_s: Array
    later_s: Array


class Observer:
    """Observations of one view, also after starts, and the action of the analytic rule there.

    Parameters
    ----------
    exponent : float
        The rule's order is by falling ``t * n**exponent`` with the remaining run time t.
    patience : float
        Factor by which the expected completion must be earlier for a job to wait.
    """

    def __init__(self, view: PlacementView, exponent: float, patience: float) -> None:
        self.view, self._patience = view, patience
        self._left_s = (1.0 - view.saved) * view.runtime_s
        pending = np.flatnonzero(~view.is_running)
        gpus = view.gpus[pending].tolist()
        powers = {size: float(size) ** exponent for size in set(gpus)}  # not by the processor
        size = self._left_s[pending] * np.array([powers[one] for one in gpus])
        order = np.argsort(-size, kind="stable")
        self._ranked: Int64s = pending[order]
        self._pools: list[Pool] = []

    def pool(self, j: int) -> Pool:
        """Return the devices that a job may use, as of the last call of :meth:`fitting`."""
        return self._pools[int(self.view.mask_of[j])]

    def fitting(self) -> Int64s:
        """Return the positions of the pending jobs that fit on idle devices, rising."""
        view = self.view
        self._ranked = self._ranked[~view.is_running[self._ranked]]
        self._pools = [Pool(view, mask) for mask in view.masks]
        idle = np.array([len(pool.idle) for pool in self._pools])
        found: Int64s = np.sort(
            self._ranked[view.gpus[self._ranked] <= idle[view.mask_of[self._ranked]]]
        )
        return found

    def observe(self, fit: Int64s) -> Observed:
        """Return the observation, given the result of :meth:`fitting`."""
        view = self.view
        place = np.empty(len(view.jobs), np.int64)
        place[self._ranked] = np.arange(len(self._ranked))
        rank = place[fit]
        scale_s, cluster = self._cluster_values()
        expected = self._expected(fit)
        return Observed(
            fit, rank, self._job_values(fit, rank, scale_s, expected), cluster,
            bool(view.is_running.any()), expected.rates_per_s, expected.here_s, expected.later_s,
        )  # fmt: skip

    def rule_action(self, observed: Observed, rows: Int64s) -> int:
        """Return the row that the rule starts next, or the number of rows if it waits.

        Parameters
        ----------
        rows : ndarray of int, shape (R,)
            Rows of the observation to choose from; the result is a position among them.
        """
        starts = np.flatnonzero(~(observed.later_s[rows] < observed.here_s[rows] * self._patience))
        if not len(starts):
            return len(rows)
        return int(starts[observed.rank[rows[starts]].argmin()])

    def _expected(self, fit: Int64s) -> _Expected:
        """Return the failure rates and expected completions of jobs that fit."""
        found = _Expected(*np.empty((4, len(fit))))
        mask_of = self.view.mask_of[fit]
        for number, pool in enumerate(self._pools):
            members = np.flatnonzero(mask_of == number)
            if len(members):
                for values, part in zip(found, self._in_pool(fit[members], pool), strict=True):
                    values[members] = part
        return found

    def _in_pool(self, jobs: Int64s, pool: Pool) -> _Expected:
        """Return the failure rates and expected completions of jobs that use one pool."""
        view, gpus = self.view, self.view.gpus[jobs]
        largest = int(gpus.max())
        here, least = pool.idle_rates(largest)[gpus], pool.least_rates(largest)[gpus]
        delays_s, later = pool.releases(largest)
        rates = np.concatenate([here[:, None], least[:, None], later.T[gpus]], axis=1)
        done_s = expected_completions_s(
            self._left_s[jobs], rates, view.interval_s[jobs], view.cost_s[jobs],
            view.restart_s[jobs], view.repair_s,
        )  # fmt: skip
        later_s = (done_s[:, 2:] + delays_s).min(axis=1, initial=math.inf)
        here_s, least_s = np.maximum(LEAST_S, done_s[:, :2]).T
        return _Expected(here, here_s, least_s, later_s)

    def _cluster_values(self) -> tuple[float, Array]:
        """Return the scale of times, in seconds, and the features of the cluster."""
        view, devices = self.view, len(self.view.holder)
        left_s = np.where(view.is_running, view.end_s - view.now_s, self._left_s)
        area_s = float((view.gpus * left_s / devices).sum())
        scale_s = max(area_s, 1.0, float(left_s.max(initial=1.0)))
        next_s = float(left_s[view.is_running].min(initial=math.inf))
        is_idle = view.holder == IDLE
        idle = int(np.count_nonzero(is_idle))
        rate = float((view.rates_per_s / devices).sum())
        idle_rate = float(view.rates_per_s[is_idle].sum()) / max(1, idle)
        return scale_s, np.array(
            [
                idle / devices,
                np.count_nonzero(view.holder == DOWN) / devices,
                len(self._ranked) / len(view.jobs),
                math.log(max(area_s, 1.0) / scale_s),
                min(next_s, scale_s) / scale_s,
                math.log(rate * scale_s + 1e-6) / 5,
                math.log((idle_rate + 1e-12) / (rate + 1e-12)) / 5,
            ]
        )

    def _job_values(self, fit: Int64s, rank: Int64s, scale_s: float, expected: _Expected) -> Array:
        """Return the features of the jobs that can start."""
        view, devices = self.view, len(self.view.holder)
        gpus, left_s = view.gpus[fit], np.maximum(1.0, self._left_s[fit])
        idle = np.array([len(pool.idle) for pool in self._pools])[view.mask_of[fit]]
        here_s = expected.here_s
        gain = np.clip(expected.later_s / here_s, LEAST_GAIN, MOST_GAIN)
        found = np.empty((len(fit), len(JOB_FEATURES)))
        found[:, 0] = left_s / scale_s
        found[:, 1] = gpus / devices
        found[:, 2] = gpus * left_s / (devices * scale_s)
        found[:, 3] = expected.rates_per_s * np.minimum(left_s, view.interval_s[fit])
        found[:, 4] = here_s / left_s
        found[:, 5] = expected.least_s / left_s
        found[:, 6] = gain
        found[:, _LOGS] = np.log(found[:, _LOGS])
        found[:, 2] /= 3
        np.minimum(found[:, _BOUNDED], 3.0, out=found[:, _BOUNDED])
        found[:, 7] = rank / len(self._ranked)
        found[:, 8] = view.saved[fit] > 0
        found[:, 9] = (idle - gpus) / devices
        return found
