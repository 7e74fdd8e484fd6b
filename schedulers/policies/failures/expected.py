"""Policy that orders jobs, places them and waits by their expected completion under failures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from presage.errors import ConfigError
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.backfilling.predicted_ends import end_s
from presage.schedulers.policies.failures.completion import expected_completion_s
from presage.schedulers.policies.failures.device_order import (
    Devices,
    Mask,
    choose_devices,
)
from presage.schedulers.policies.failures.device_policy import full_devices
from presage.schedulers.policies.failures.hazards import HazardSource
from presage.schedulers.policies.failures.later_rates import (
    IDLE,
    NEVER,
    LaterRates,
    later_rates,
)
from presage.schedulers.policies.failures.least_failing import LeastFailing, remaining_s
from presage.system.arrays import Array


class _Choice(NamedTuple):
    """Devices that a gang can have now, and the rates of those that it could have later."""

    devices: Devices
    rate_per_s: float
    later: LaterRates


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
        delay_s = self._delays_s(state, forecasts, usable)
        unfit: set[object] = set()
        chosen: dict[tuple[int, tuple[str, ...]], _Choice | None] = {}  # until the next start
        for job in sorted(state.pending, key=lambda job: self._rank(job, state, forecasts)):
            if job.request in unfit:
                continue
            key = gang_size(job, state.cluster), job.kinds
            if key not in chosen:
                chosen[key] = self._best_choice(job, key[0], usable, delay_s, rates, state.cluster)
            choice = chosen[key]
            if choice is None:
                unfit.add(job.request)
                continue
            left_s = remaining_s(job, state, forecasts)
            if self._waits(job, left_s, choice):
                continue
            if plan.start(job, full_devices(choice.devices, state)):
                usable[choice.devices] = False
                chosen = {}
                costs = job.checkpointing
                restart_s = costs.restart_s if state.progress(job.job_id) else 0.0
                paced_s = left_s * (1 + costs.cost_s / costs.interval_s)
                delay_s[choice.devices] = restart_s + paced_s

    def _rank(self, job: Job, state: State, forecasts: Forecasts) -> Key:
        left_s = remaining_s(job, state, forecasts)
        size = left_s * job.gpus**self._a if left_s < math.inf else -1.0
        return (not job.latency_sensitive, -job.priority, -size, job.submit_s)

    def _delays_s(self, state: State, forecasts: Forecasts, usable: Mask) -> Array:
        """Return the predicted time until each device is released, of shape (devices,)."""
        delay_s = np.where(usable, IDLE, math.inf)
        for job_id, status in state.running.items() if self._patience else ():
            ends_s = end_s(state.job(job_id), status.allocations, state, forecasts)
            delay_s[[one.device for one in status.allocations]] = ends_s - state.now_s
        return delay_s

    def _best_choice(
        self, job: Job, gang: int, usable: Mask, delay_s: Array, rates: Array, cluster: Cluster
    ) -> _Choice | None:
        """Return the best devices for a gang, now and later; None if too few are usable."""
        devices = choose_devices(job, gang, usable, rates, cluster)
        if devices is None:
            return None
        rate_per_s = float(rates[devices].sum())
        later = NEVER
        if self._patience:
            if job.kinds:
                delay_s = np.where(cluster.columns.has_kind(job.kinds), delay_s, math.inf)
            later = later_rates(gang, rate_per_s, delay_s, rates, cluster)
        return _Choice(devices, rate_per_s, later)

    def _waits(self, job: Job, left_s: float, choice: _Choice) -> bool:
        """Return whether a job is expected to end earlier on devices that jobs will release."""
        steps, least_per_s = choice.later
        if not steps or left_s == math.inf:
            return False
        limit_s = self._completion_s(job, left_s, choice.rate_per_s) * self._patience
        if steps[0][0] + self._completion_s(job, left_s, least_per_s) >= limit_s:
            return False
        return any(
            delay_s + self._completion_s(job, left_s, rate_per_s) < limit_s
            for delay_s, rate_per_s in steps
        )

    def _completion_s(self, job: Job, left_s: float, rate_per_s: float) -> float:
        costs = job.checkpointing
        return expected_completion_s(
            left_s, rate_per_s, costs.interval_s, costs.cost_s, costs.restart_s, self._repair_s
        )
