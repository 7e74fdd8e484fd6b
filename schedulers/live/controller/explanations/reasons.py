"""Reasons for the placements of a decision, from the free capacity at each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.action import Action, Preempt, Resize, Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.policy import Policy
from presage.schedulers.live.controller.demand import policy_demand
from presage.schedulers.live.controller.elastic.size_reasons import size_reason
from presage.schedulers.policies.sharing.needs import Needs
from presage.system.text.units import quantity

MAX_NAMED = 3  # of the jobs that free capacity


class Before(NamedTuple):
    """Free capacity and job statuses before a decision was applied.

    Attributes
    ----------
    capacity : FreeCapacity
        Free capacity of all devices.
    statuses : dict of str to JobStatus
        Statuses of the jobs that the decision concerns.
    """

    capacity: FreeCapacity
    statuses: dict[str, JobStatus]


class _Freed(NamedTuple):
    """Allocations that a job releases or shrinks by the same decision."""

    job_id: str
    verb: str
    allocations: tuple[Allocation, ...]


def reasons_of(
    actions: Sequence[Action],
    before: Before,
    ledger: Ledger,
    policy: Policy,
    forecasts: Forecasts,
    node_number: NDArray[np.int64],
) -> dict[str, str]:
    """Return the reason for the placement of each started job, in a few words.

    Parameters
    ----------
    actions : sequence of Action
        The applied actions.
    node_number : ndarray of shape (devices,)
        Number of the live node of each device.
    """
    capacity, freed, reasons = before.capacity, list[_Freed](), {}
    for action in actions:
        match action:
            case Preempt():
                allocations = before.statuses[action.job_id].allocations
                freed.append(_Freed(action.job_id, "ends", allocations))
            case Resize():
                allocations = before.statuses[action.job_id].allocations
                freed.append(_Freed(action.job_id, "is shrunk", allocations))
                if ledger.jobs[action.job_id].is_elastic:
                    reasons[action.job_id] = size_reason(
                        action, allocations, actions, ledger, forecasts
                    )
            case Start() if ledger.jobs[action.job_id].is_elastic:
                reasons[action.job_id] = size_reason(action, (), actions, ledger, forecasts)
                capacity.take(action.allocations)
            case Start():
                status = before.statuses[action.job_id]
                choice = _Choice(action, status, ledger, policy, forecasts, capacity, node_number)
                reasons[action.job_id] = choice.reason(freed)
                capacity.take(action.allocations)
    return reasons


class _Choice:
    """Start of a job, and the free capacity before it."""

    def __init__(
        self,
        start: Start,
        status: JobStatus,
        ledger: Ledger,
        policy: Policy,
        forecasts: Forecasts,
        capacity: FreeCapacity,
        node_number: NDArray[np.int64],
    ) -> None:
        self._allocations, self._capacity, self._node_number = (
            start.allocations,
            capacity,
            node_number,
        )
        self._job, self._status = ledger.jobs[start.job_id], status
        self._columns, self._policy, self._forecasts = ledger.cluster.columns, policy, forecasts
        self._kind = ledger.cluster.kind_of(start.allocations[0].device)
        self._needs: Needs = policy_demand(
            policy, self._job, status.overflows, ledger.cluster, forecasts
        )

    def reason(self, freed: Sequence[_Freed]) -> str:
        """Return the reason for the choice of devices, in a few words."""
        devices = [allocation.device for allocation in self._allocations]
        if self._status.previous_devices and set(devices) == set(self._status.previous_devices):
            return "it ran there before"
        fits = self._needs.fit(self._capacity, self._columns)
        if not fits[devices].all():
            changes = tuple(dict.fromkeys(self._changes(freed)))
            n_more = len(changes) - MAX_NAMED
            named = [*changes[:MAX_NAMED], *([f"{n_more} more"] if n_more > 0 else [])]
            freed_by = f": {', '.join(named)}" if named else ""
            return f"no node had free capacity for {self._demand()}{freed_by}"
        return self._compare_nodes(devices, fits)

    def _compare_nodes(self, devices: Sequence[int], fits: NDArray[np.bool_]) -> str:
        """Return how the node compares with all nodes that had free capacity."""
        if self._job.kinds:
            fits = fits & self._columns.has_kind(self._job.kinds)
        on_node = np.bincount(self._node_number[fits], minlength=self._node_number.max() + 1)
        nodes = int((on_node >= len(devices)).sum())
        if nodes <= 1:
            return f"no other node had free capacity for {self._demand()}"
        text = f"{nodes} nodes had free capacity for {self._demand()}"
        on_this_node = fits & (self._node_number == self._node_number[devices[0]])
        free = self._capacity.compute_milli
        max_free = int(free[on_this_node].max())
        if len(devices) == 1 and max_free == int(free[fits].max()):
            return (
                f"{text}, and this one has the device with the most free compute, {_part(max_free)}"
            )
        return text

    def _changes(self, freed: Sequence[_Freed]) -> Iterator[str]:
        """Yield the changes of other jobs on the chosen devices."""
        devices = {allocation.device for allocation in self._allocations}
        for job_id, verb, allocations in freed:
            if not devices.isdisjoint(allocation.device for allocation in allocations):
                yield f"{job_id} {verb}"

    def _demand(self) -> str:
        """Return the demand of the job as text."""
        number = self._columns.kinds.index(self._kind)
        milli, memory = self._needs.compute_milli[number], self._needs.memory_bytes[number]
        if self._job.gpus > 1:
            return f"{self._job.gpus} devices"
        if (
            milli < FULL_DEVICE_MILLI
            or memory < self._columns.memory_bytes[self._allocations[0].device]
        ):
            return f"{_part(milli)} and {quantity(memory, 'bytes')} of a device"
        if self._status.overflows:
            return "an exclusive device, because it ran out of memory before"
        missing = self._forecasts.prediction(self._job, self._kind).runtime_s == math.inf
        shared = self._policy.needs.allocation == "predicted"
        return "an exclusive device" + (self._missing_forecast() if shared and missing else "")

    def _missing_forecast(self) -> str:
        """Return that there is no forecast, and the failure that may be the cause."""
        described = self._job.features is not None or self._job.model
        failure = self._forecasts.failure if described else ""
        return f", because there is no forecast{f' ({failure})' if failure else ''}"


def _part(milli: int) -> str:
    return f"{milli / 10:g} %"
