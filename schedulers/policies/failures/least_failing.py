"""Policies that place by failure rates: safest devices first, or matched to the longest jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from presage.errors import ConfigError
from presage.schedulers.core.action import Action
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.completion import daly_interval_s
from presage.schedulers.policies.failures.device_order import (
    Mask,
    avoided_mask,
    choose_devices,
    idle_mask,
)
from presage.schedulers.policies.failures.device_policy import DevicePolicy
from presage.schedulers.policies.failures.hazards import ForecastHazards, HazardSource, clean_rates
from presage.system.arrays import Array


class LeastFailing(DevicePolicy):
    """Policy that starts jobs by arrival on the idle devices with the lowest failure rates.

    Parameters
    ----------
    avoid : float
        Largest fraction of the devices that is left idle because of a high failure rate.
    avoid_above : float
        Multiple of the median rate above which a device is avoided.
    sets_interval : bool
        Whether jobs with checkpoints get the best interval for their devices (Young and Daly).
    hazards : HazardSource, optional
        Source of the failure rates; by default the forecasts.
    """

    needs = PolicyNeeds(hazards=True)

    def __init__(
        self,
        avoid: float = 0.0,
        avoid_above: float = 4.0,
        sets_interval: bool = False,
        hazards: HazardSource | None = None,
    ) -> None:
        if not 0 <= avoid < 1:
            raise ConfigError(f"avoid={avoid}, must be within 0 and below 1")
        if not avoid_above >= 1:
            raise ConfigError(f"avoid_above={avoid_above}, must be >= 1")
        self._avoid, self._avoid_above = avoid, avoid_above
        self._sets_interval = sets_interval
        self._hazards = hazards or ForecastHazards()

    def preference(self, state: State, forecasts: Forecasts, rng: Random) -> Array:
        """Return the failure rates per second."""
        del rng
        return self.rates_per_s(state, forecasts)

    def rates_per_s(self, state: State, forecasts: Forecasts) -> Array:
        """Return the failure rate of every device, finite and at least 0."""
        return clean_rates(self._hazards.rates_per_s(state, forecasts))

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Start all jobs that fit, on the devices that are not avoided."""
        plan = state.plan()
        if not (state.idle_count and len(state.pending)):
            return plan.actions
        rates = self.preference(state, forecasts, rng)
        idle = idle_mask(state.cluster, plan.capacity)
        usable = self._without_avoided(state, idle, rates)
        self.start(plan, state, forecasts, usable, rates)
        if not plan.actions and not state.running:  # no job waits for avoided devices for ever
            self.start(plan, state, forecasts, idle, rates)
        return plan.actions

    def start(
        self, plan: Plan, state: State, forecasts: Forecasts, usable: Mask, rates: Array
    ) -> None:
        """Start jobs on usable devices."""
        del forecasts
        self.fill(plan, state, state.pending, usable, rates)

    def _without_avoided(self, state: State, usable: Mask, rates_per_s: Array) -> Mask:
        """Return the mask without the devices that are avoided."""
        if not self._avoid:
            return usable.copy()
        waiting = [gang_size(job, state.cluster) for job in state.pending]
        largest = max(waiting, default=0)
        return usable & ~avoided_mask(rates_per_s, self._avoid, self._avoid_above, largest)

    def checkpoint_interval_s(
        self, job: Job, allocations: Sequence[Allocation], state: State, forecasts: Forecasts
    ) -> float:
        """Return the job's interval, or the best one for the failure rate of its devices."""
        costs = job.checkpointing
        if not self._sets_interval or costs.interval_s == math.inf:
            return costs.interval_s
        rates = self.rates_per_s(state, forecasts)
        return daly_interval_s(sum(rates[one.device] for one in allocations), costs.cost_s)


class Matched(LeastFailing):
    """Policy that gives the safest devices to the longest of the jobs that start at once.

    The jobs are those that ``least-failing`` starts. A job without a forecast counts as long.
    """

    def start(
        self, plan: Plan, state: State, forecasts: Forecasts, usable: Mask, rates: Array
    ) -> None:
        """Start all jobs that fit, in order of falling remaining run time."""
        jobs, free = [], usable.copy()
        for job in state.pending:
            gang = gang_size(job, state.cluster)
            devices = choose_devices(job, gang, free, rates, state.cluster)
            if devices is not None:
                free[devices] = False
                jobs.append(job)
        jobs.sort(key=lambda job: -remaining_s(job, state, forecasts))
        self.fill(plan, state, jobs, usable, rates)


def remaining_s(job: Job, state: State, forecasts: Forecasts) -> float:
    """Return the predicted remaining run time of a pending job; infinite if unknown."""
    return (1.0 - state.progress(job.job_id)) * forecasts.runtime_s(job)
