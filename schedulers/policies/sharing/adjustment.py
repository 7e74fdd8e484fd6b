"""Rebalancing of running jobs: more compute for violated SLOs, less for best effort (N3 to N7).

It covers an agent's own node in a live cluster, and all nodes in the simulator.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from presage.schedulers.core.action import Action, Pause, Resize, Resume
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.state import State
from presage.schedulers.policies.sharing.best_effort import Tenants
from presage.schedulers.policies.sharing.demand import share_of
from presage.schedulers.policies.sharing.reclaim import release
from presage.schedulers.policies.sharing.sharing_settings import Settings
from presage.schedulers.policies.sharing.slo import too_busy, violated


class _Check(NamedTuple):
    """Check of a job's SLO."""

    elapsed_s: float
    done: float
    pace_s: float
    prediction: RuntimePrediction
    reserve: float

    def violated(self, times: float = 1.0) -> bool:
        """Return whether the SLO is violated with a multiple of the present share."""
        pace_s = self.pace_s / times
        return violated(self.elapsed_s, self.done, self.prediction, pace_s, self.reserve)


class Rebalancing:
    """One check of all running jobs; ``capacity`` changes with every action.

    Attributes
    ----------
    actions : list of Action
        Decided actions, in order.
    late : dict of str to bool
        Whether the SLO of each latency-sensitive job on a single device is violated (N3).
    hungry : bool
        Whether a best-effort job runs with less compute than it needs.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        capacity: FreeCapacity,
        tenants: Tenants,
        settings: Settings,
    ) -> None:
        self._state, self._forecasts, self._settings = state, forecasts, settings
        self._capacity, self._tenants = capacity, tenants
        self.actions: list[Action] = []
        self.late: dict[str, bool] = {}
        self.hungry = False

    def run(self) -> list[Action]:
        """Check latency-sensitive jobs first, then return compute to best-effort jobs."""
        urgent: list[tuple[Job, JobStatus]] = []
        others: list[tuple[Job, JobStatus]] = []
        for job_id, status in (*self._state.running.items(), *self._state.paused.items()):
            if len(status.allocations) == 1:
                job = self._state.job(job_id)
                (urgent if job.latency_sensitive else others).append((job, status))
        for job, status in urgent:
            self._check_slo(job, status)
        strained = {status.allocations[0].device for job, status in urgent if self.late[job.job_id]}
        for job, status in others:
            self._restore(job, status.allocations[0].device in strained)
        return self.actions

    def _check_slo(self, job: Job, status: JobStatus) -> None:
        (allocation,), state = status.allocations, self._state
        check = _Check(
            max(0.0, state.now_s - status.first_start_s),
            state.progress(job.job_id),
            state.pace_s(job.job_id),
            self._prediction(job, allocation),
            self._settings.reserve,
        )
        late = self.late[job.job_id] = check.violated()
        busy = not late and too_busy(state.usage_milli(job.job_id), check.prediction)
        if status.phase is Phase.PAUSED:
            if not busy:
                self.actions.append(Resume(job.job_id))
        elif busy:
            self.actions.append(Pause(job.job_id))
        elif late:
            surely = check._replace(pace_s=state.least_pace_s(job.job_id)).violated()
            self._raise(
                job, allocation, self._wanted(allocation.compute_milli, check), surely=surely
            )

    def _wanted(self, milli: int, check: _Check) -> int:
        """Return the share that restores a violated SLO, in steps (N4).

        It is one step more if the effect of a share is unknown, or if no share is predicted to be
        enough.
        """
        step_milli = self._settings.step_milli
        if not check.pace_s or check.violated(math.inf):
            return min(FULL_DEVICE_MILLI, milli + step_milli)
        wanted = milli
        while wanted < FULL_DEVICE_MILLI and check.violated(wanted / milli):
            wanted = min(FULL_DEVICE_MILLI, wanted + step_milli)
        return wanted

    def _raise(self, job: Job, allocation: Allocation, wanted_milli: int, *, surely: bool) -> None:
        """Give a job more compute, from free capacity or from best-effort jobs (N4 to N6).

        Best-effort jobs are shrunk at once, but evicted only if the SLO is ``surely`` violated,
        since an eviction cannot be undone by the next check.
        """
        device, left = allocation.device, int(self._capacity.compute_milli[allocation.device])
        more = wanted_milli - allocation.compute_milli
        if left < more:
            tenants = self._tenants.on_device(device)
            if not surely:
                more = min(more, left + sum(one.spare_milli for one in tenants))
            found = release(more - left, 0, tenants)
            if found is None:  # not all of it can be reclaimed
                more = left + sum(one.compute_milli for one in tenants)
                found = release(more - left, 0, tenants)
                assert found is not None
            self.actions += self._tenants.carry_out(found, device)
        if more > 0:
            self._capacity.compute_milli[device] -= more
            given = allocation._replace(compute_milli=allocation.compute_milli + more)
            self.actions.append(Resize(job.job_id, (given,)))

    def _restore(self, job: Job, strained: bool) -> None:
        """Return compute to a best-effort job that was shrunk, as far as it is free."""
        allocation = self._tenants.allocation_of(job.job_id)
        if allocation is None:
            return
        wanted = share_of(self._prediction(job, allocation), self._settings.overcommit)
        lack = wanted - allocation.compute_milli
        more = 0 if strained else min(lack, int(self._capacity.compute_milli[allocation.device]))
        if more > 0:
            self.actions.append(self._tenants.change(job.job_id, allocation.compute_milli + more))
        self.hungry |= more < lack

    def _prediction(self, job: Job, allocation: Allocation) -> RuntimePrediction:
        return self._forecasts.prediction(job, self._state.cluster.kind_of(allocation.device))


def not_on_hold(state: State) -> FreeCapacity:
    """Return the free capacity without the compute that paused jobs get back when resumed."""
    capacity = state.capacity()
    for status in state.paused.values():
        for device, compute_milli, _ in status.allocations:
            capacity.compute_milli[device] -= compute_milli
    return capacity
