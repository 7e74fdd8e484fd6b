"""Why each job of a decision goes where it goes: what was left when it was its turn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
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
from presage.schedulers.live.controller.demand import wanted_of
from presage.schedulers.policies.sharing.needs import Needs
from presage.system.text.units import quantity

MOST_NAMED = 3  # of those who make room


class Before(NamedTuple):
    """How things stood before a decision was carried out.

    Attributes
    ----------
    capacity : FreeCapacity
        What was left of every device.
    statuses : dict of str to JobStatus
        Of the jobs that it is about.
    """

    capacity: FreeCapacity
    statuses: dict[str, JobStatus]


class _Given(NamedTuple):
    """What a job gives back of the devices that it had, by the same decision."""

    job_id: str
    how: str
    allocations: tuple[Allocation, ...]


def reasons_of(
    actions: Iterable[Action],
    before: Before,
    ledger: Ledger,
    policy: Policy,
    forecasts: Forecasts,
    node_number: NDArray[np.int64],
) -> dict[str, str]:
    """Of each job that was started, in a few words.

    Parameters
    ----------
    actions : iterable of Action
        That were carried out.
    node_number : ndarray of shape (devices,)
        The live node that each device is in.
    """
    capacity, given, reasons = before.capacity, list[_Given](), {}
    for action in actions:
        match action:
            case Preempt():
                had = before.statuses[action.job_id].allocations
                given.append(_Given(action.job_id, "ends", had))
            case Resize():
                had = before.statuses[action.job_id].allocations
                given.append(_Given(action.job_id, "is lowered", had))
            case Start():
                status = before.statuses[action.job_id]
                one = _Choice(action, status, ledger, policy, forecasts, capacity, node_number)
                reasons[action.job_id] = one.reason(given)
                capacity.take(action.allocations)
    return reasons


class _Choice:
    """A start, and what was left before it."""

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
        self._needs: Needs = wanted_of(
            policy, self._job, status.overflows, ledger.cluster, forecasts
        )

    def reason(self, given: Sequence[_Given]) -> str:
        """In a few words."""
        here = [allocation.device for allocation in self._allocations]
        if self._status.previous_devices and set(here) == set(self._status.previous_devices):
            return "it had been there before"
        fits = self._needs.fit(self._capacity, self._columns)
        if not fits[here].all():
            makers = tuple(dict.fromkeys(self._makers(given)))
            more = len(makers) - MOST_NAMED
            named = [*makers[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
            makes = f": {', '.join(named)}" if named else ""
            return f"no node had room for {self._wanted()}{makes}"
        return self._among(here, fits)

    def _among(self, here: Sequence[int], fits: NDArray[np.bool_]) -> str:
        """How this node compares with all that had room."""
        if self._job.kinds:
            fits = fits & self._columns.has_kind(self._job.kinds)
        on_node = np.bincount(self._node_number[fits], minlength=self._node_number.max() + 1)
        nodes = int((on_node >= len(here)).sum())
        if nodes <= 1:
            return f"no other node had room for {self._wanted()}"
        found = f"{nodes} nodes had room for {self._wanted()}"
        mine = fits & (self._node_number == self._node_number[here[0]])
        left = self._capacity.compute_milli
        most = int(left[mine].max())
        if len(here) == 1 and most == int(left[fits].max()):
            return f"{found}, and none a device with more left than here, {_part(most)}"
        return found

    def _makers(self, given: Sequence[_Given]) -> Iterator[str]:
        here = {allocation.device for allocation in self._allocations}
        for job_id, how, allocations in given:
            if not here.isdisjoint(allocation.device for allocation in allocations):
                yield f"{job_id} {how}"

    def _wanted(self) -> str:
        """What it was to have."""
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
            return "a whole device, as it ran out of memory before"
        missing = self._forecasts.prediction(self._job, self._kind).runtime_s == math.inf
        shared = self._policy.needs.allocation == "predicted"
        return "a whole device" + (self._missing() if shared and missing else "")

    def _missing(self) -> str:
        """That nothing is foretold of it; and why, if it might have been."""
        described = self._job.features is not None or self._job.model
        failure = self._forecasts.failure if described else ""
        return f", as nothing is foretold of it{f' ({failure})' if failure else ''}"


def _part(milli: int) -> str:
    return f"{milli / 10:g} %"
