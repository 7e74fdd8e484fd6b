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
from presage.schedulers.policies.sharing.best_effort import BestEffortJobs
from presage.schedulers.policies.sharing.needs import share_of
from presage.schedulers.policies.sharing.reclaim import release
from presage.schedulers.policies.sharing.sharing_settings import Settings
from presage.schedulers.policies.sharing.slo import is_too_busy, is_violated


class _Check(NamedTuple):
    """Check of a job's SLO."""

    elapsed_s: float
    done: float
    pace_s: float
    prediction: RuntimePrediction
    reserve: float

    def is_violated(self, times: float = 1.0) -> bool:
        """Return whether the SLO is violated with a multiple of the present share."""
        pace_s = self.pace_s / times
        return is_violated(self.elapsed_s, self.done, self.prediction, pace_s, self.reserve)


class Rebalancing:
    """One check of all running jobs; ``capacity`` changes with every action.

    Attributes
    ----------
    actions : list of Action
        Decided actions, in order.
    violated : dict of str to bool
        Whether the SLO of each latency-sensitive job on a single device is violated (N3).
    has_shrunk_jobs : bool
        Whether a best-effort job runs with less compute than it needs.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        capacity: FreeCapacity,
        tenants: BestEffortJobs,
        settings: Settings,
    ) -> None:
        self._state, self._forecasts, self._settings = state, forecasts, settings
        self._capacity, self._tenants = capacity, tenants
        self.actions: list[Action] = []
        self.violated: dict[str, bool] = {}
        self.has_shrunk_jobs = False

    def run(self) -> list[Action]:
        """Check latency-sensitive jobs first, then return compute to best-effort jobs."""
        sensitive: list[tuple[Job, JobStatus]] = []
        others: list[tuple[Job, JobStatus]] = []
        for job_id, status in (*self._state.running.items(), *self._state.paused.items()):
            if len(status.allocations) == 1:
                job = self._state.job(job_id)
                (sensitive if job.latency_sensitive else others).append((job, status))
        for job, status in sensitive:
            self._check_slo(job, status)
        contended = {
            status.allocations[0].device for job, status in sensitive if self.violated[job.job_id]
        }
        for job, status in others:
            self._restore(job, status.allocations[0].device in contended)
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
        violated_slo = self.violated[job.job_id] = check.is_violated()
        busy = not violated_slo and is_too_busy(state.usage_milli(job.job_id), check.prediction)
        if status.phase is Phase.PAUSED:
            if not busy:
                self.actions.append(Resume(job.job_id))
        elif busy:
            self.actions.append(Pause(job.job_id))
        elif violated_slo:
            fastest = check._replace(pace_s=state.least_pace_s(job.job_id))
            is_certain = fastest.is_violated()
            self._grow(
                job,
                allocation,
                self._target_share(allocation.compute_milli, check),
                is_certain=is_certain,
            )

    def _target_share(self, milli: int, check: _Check) -> int:
        """Return the share that restores a violated SLO, in steps (N4).

        It is one step more if the effect of a share is unknown, or if no share is predicted to be
        enough.
        """
        step_milli = self._settings.step_milli
        if not check.pace_s or check.is_violated(math.inf):
            return min(FULL_DEVICE_MILLI, milli + step_milli)
        target_milli = milli
        while target_milli < FULL_DEVICE_MILLI and check.is_violated(target_milli / milli):
            target_milli = min(FULL_DEVICE_MILLI, target_milli + step_milli)
        return target_milli

    def _grow(
        self, job: Job, allocation: Allocation, target_milli: int, *, is_certain: bool
    ) -> None:
        """Give a job more compute, from free capacity or from best-effort jobs (N4 to N6).

        Best-effort jobs are shrunk at once, but evicted only if the violation ``is_certain``,
        since an eviction cannot be undone by the next check.
        """
        device, left = allocation.device, int(self._capacity.compute_milli[allocation.device])
        more = target_milli - allocation.compute_milli
        if left < more:
            tenants = self._tenants.on_device(device)
            if not is_certain:
                more = min(more, left + sum(tenant.spare_milli for tenant in tenants))
            found = release(more - left, 0, tenants)
            if found is None:  # the missing compute cannot be reclaimed completely
                more = left + sum(tenant.compute_milli for tenant in tenants)
                found = release(more - left, 0, tenants)
                assert found is not None
            self.actions += self._tenants.carry_out(found, device)
        if more > 0:
            self._capacity.compute_milli[device] -= more
            grown = allocation._replace(compute_milli=allocation.compute_milli + more)
            self.actions.append(Resize(job.job_id, (grown,)))

    def _restore(self, job: Job, is_contended: bool) -> None:
        """Return compute to a best-effort job that was shrunk, as far as it is free."""
        allocation = self._tenants.allocation_of(job.job_id)
        if allocation is None:
            return
        target_milli = share_of(self._prediction(job, allocation), self._settings.overcommit)
        lack = target_milli - allocation.compute_milli
        more = (
            0 if is_contended else min(lack, int(self._capacity.compute_milli[allocation.device]))
        )
        if more > 0:
            self.actions.append(self._tenants.change(job.job_id, allocation.compute_milli + more))
        self.has_shrunk_jobs |= more < lack

    def _prediction(self, job: Job, allocation: Allocation) -> RuntimePrediction:
        return self._forecasts.prediction(job, self._state.cluster.kind_of(allocation.device))


def capacity_without_paused(state: State) -> FreeCapacity:
    """Return the free capacity without the compute that paused jobs get back when resumed."""
    capacity = state.capacity()
    for status in state.paused.values():
        for device, compute_milli, _ in status.allocations:
            capacity.compute_milli[device] -= compute_milli
    return capacity
