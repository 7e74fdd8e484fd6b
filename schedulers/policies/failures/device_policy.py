"""Base of the policies that start all jobs that fit, on devices by a preference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from random import Random

import numpy as np

from presage.schedulers.core.action import Action
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.plan import Plan
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.state import State
from presage.schedulers.policies.failures.device_order import (
    Devices,
    Mask,
    choose_devices,
    idle_mask,
)
from presage.system.arrays import Array


class DevicePolicy(Policy):
    """Policy that starts pending jobs by arrival where they fit, and skips those that do not.

    A gang stays on one node if a node has enough usable devices for it. Subclasses define the
    preference among devices.
    """

    @abstractmethod
    def preference(self, state: State, forecasts: Forecasts, rng: Random) -> Array:
        """Return a value of shape (devices,) for this decision; lower values are used first."""

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Start all jobs that fit."""
        plan = state.plan()
        if state.idle_count and len(state.pending):
            preference = self.preference(state, forecasts, rng)
            usable = idle_mask(state.cluster, plan.capacity)
            self.fill(plan, state, state.pending, usable, preference)
        return plan.actions

    def fill(
        self, plan: Plan, state: State, jobs: Iterable[Job], usable: Mask, preference: Array
    ) -> None:
        """Start jobs in order on usable devices; these are removed from the mask."""
        unfit: set[object] = set()
        for job in jobs:
            if not usable.any():
                break
            if job.request in unfit:
                continue
            devices = choose_devices(
                job, gang_size(job, state.cluster), usable, preference, state.cluster
            )
            if devices is not None and plan.start(job, full_devices(devices, state)):
                usable[devices] = False
            else:
                unfit.add(job.request)


class FirstFit(DevicePolicy):
    """Policy that starts jobs by arrival on the first idle devices."""

    def preference(self, state: State, forecasts: Forecasts, rng: Random) -> Array:
        """Return the device numbers."""
        del forecasts, rng
        return np.arange(state.cluster.devices, dtype=float)


class RandomFit(DevicePolicy):
    """Policy that starts jobs by arrival on random idle devices."""

    def preference(self, state: State, forecasts: Forecasts, rng: Random) -> Array:
        """Return random values."""
        del forecasts
        return np.array([rng.random() for _ in range(state.cluster.devices)])


def full_devices(devices: Devices, state: State) -> tuple[Allocation, ...]:
    """Return the allocations of full devices, by device number."""
    full = state.cluster.full_allocations
    return tuple(full[device] for device in sorted(devices.tolist()))
