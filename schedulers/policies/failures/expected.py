"""Policy that orders jobs, places them and waits by their expected completion under failures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from presage.errors import ConfigError
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.backfill import end_s
from presage.schedulers.policies.failures.completion import expected_completion_s
from presage.schedulers.policies.failures.device_order import (
    Devices,
    Mask,
    choose_devices,
)
from presage.schedulers.policies.failures.device_policy import full_devices
from presage.schedulers.policies.failures.hazards import HazardSource
from presage.schedulers.policies.failures.least_failing import LeastFailing, remaining_s
from presage.system.arrays import Array


class _Release(NamedTuple):
    """Predicted end of a job, with its devices and the lowest of their failure rates."""

    ends_s: float
    devices: Devices
    least_rate_per_s: float


class Expected(LeastFailing):
    """Policy that starts large jobs first on the safest devices, and waits for safer ones.

    Jobs are ordered by priority, then by falling t * n**a with the predicted remaining run time t
    and the number of devices n; jobs without a forecast come last. A job waits if it is expected to
    end earlier on devices that running jobs will release.

    Parameters
    ----------
    a : float
        Weight of the number of devices in the order.
    patience : float
        Factor by which the expected completion must be earlier for a job to wait; 0 never waits.
    repair_s : float
        Expected time from a failure until a job has devices again.
    """

    needs = replace(LeastFailing.needs, orders_jobs=True)

    def __init__(
        self,
        a: float = 0.5,
        patience: float = 1.0,
        repair_s: float = 7200.0,
        avoid: float = 0.0,
        avoid_above: float = 4.0,
        sets_interval: bool = False,
        hazards: HazardSource | None = None,
    ) -> None:
        super().__init__(avoid, avoid_above, sets_interval, hazards)
        if not 0 <= patience < math.inf or not 0 <= repair_s < math.inf:
            raise ConfigError(
                f"patience={patience} and repair_s={repair_s}, must be finite numbers >= 0"
            )
        self._a, self._patience, self._repair_s = a, patience, repair_s

    def start(
        self, plan: Plan, state: State, forecasts: Forecasts, usable: Mask, rates: Array
    ) -> None:
        """Start jobs in order, unless they had better wait."""
        releases = self._releases(state, forecasts, rates)
        unfit: set[object] = set()
        chosen: dict[tuple[int, tuple[str, ...]], Devices | None] = {}  # until the next start
        for job in sorted(state.pending, key=lambda job: self._rank(job, state, forecasts)):
            if job.request in unfit:
                continue
            key = gang_size(job, state.cluster), job.kinds
            if key not in chosen:
                chosen[key] = choose_devices(job, key[0], usable, rates, state.cluster)
            devices = chosen[key]
            if devices is None:
                unfit.add(job.request)
                continue
            if self._waits(job, devices, usable, releases, rates, state, forecasts):
                continue
            if plan.start(job, full_devices(devices, state)):
                usable[devices] = False
                chosen = {}
                releases = self._with_start(releases, job, devices, rates, state, forecasts)

    def _rank(self, job: Job, state: State, forecasts: Forecasts) -> Key:
        left_s = remaining_s(job, state, forecasts)
        size = left_s * job.gpus**self._a if left_s < math.inf else -1.0
        return (not job.latency_sensitive, -job.priority, -size, job.submit_s)

    def _releases(self, state: State, forecasts: Forecasts, rates: Array) -> list[_Release]:
        """Return when running jobs are predicted to end, and their devices, by time."""
        if not self._patience:
            return []
        found = []
        for job_id, status in state.running.items():
            devices = np.array([one.device for one in status.allocations])
            ends_s = end_s(state.job(job_id), status.allocations, state, forecasts)
            found.append(_Release(ends_s, devices, float(rates[devices].min())))
        return sorted(found, key=lambda release: release.ends_s)

    def _with_start(
        self,
        releases: list[_Release],
        job: Job,
        devices: Devices,
        rates: Array,
        state: State,
        forecasts: Forecasts,
    ) -> list[_Release]:
        """Return the releases with that of a job that this decision starts."""
        if not self._patience:
            return []
        costs = job.checkpointing
        left_s = remaining_s(job, state, forecasts) * (1 + costs.cost_s / costs.interval_s)
        restart_s = costs.restart_s if state.progress(job.job_id) else 0.0
        ends_s = state.now_s + restart_s + left_s
        added = _Release(ends_s, devices, float(rates[devices].min()))
        return sorted([*releases, added], key=lambda release: release.ends_s)

    def _waits(
        self,
        job: Job,
        devices: Devices,
        usable: Mask,
        releases: list[_Release],
        rates: Array,
        state: State,
        forecasts: Forecasts,
    ) -> bool:
        """Return whether a job is expected to end earlier on devices that jobs will release.

        On nodes with one device each, a release without a safer device changes nothing.
        """
        left_s = remaining_s(job, state, forecasts)
        if not self._patience or left_s == math.inf:
            return False
        best_s = self._completion_s(job, left_s, devices, rates)
        limit_s = best_s * self._patience
        is_flat = len(state.cluster.nodes) == state.cluster.devices
        worst = float(rates[devices].max()) if is_flat else math.inf
        found, gang = usable.copy(), len(devices)
        for release in releases:
            delay_s = release.ends_s - state.now_s
            if delay_s >= limit_s:
                return False
            if release.least_rate_per_s < worst:
                found[release.devices] = True
                later = choose_devices(job, gang, found, rates, state.cluster)
                if later is None:
                    continue
                best_s = self._completion_s(job, left_s, later, rates)
                worst = float(rates[later].max()) if is_flat else math.inf
            if delay_s + best_s < limit_s:
                return True
        return False

    def _completion_s(self, job: Job, left_s: float, devices: Devices, rates: Array) -> float:
        costs = job.checkpointing
        rate = float(rates[devices].sum())
        return expected_completion_s(
            left_s, rate, costs.interval_s, costs.cost_s, costs.restart_s, self._repair_s
        )
