"""Rebalancing of running jobs: more compute for violated SLOs, less for best effort (N3 to N7).

It covers an agent's own node in a live cluster, and all nodes in the simulator.
"""

from __future__ import annotations

import math
from itertools import chain
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
from presage.schedulers.policies.sharing.slo import is_too_busy, is_violated, slack_s

_ROUNDED_DOWN = 1 - 1e-6  # tolerance of a slack: a check must not be left out


class _Check(NamedTuple):
    """Check of a job's SLO."""

    elapsed_s: float
    done: float
    pace_s: float
    prediction: RuntimePrediction
    reserve: float

    def slack_s(self) -> float:
        """Return the time that is left of the SLO at the end of the job, at its present pace."""
        return slack_s(self.elapsed_s, self.done, self.prediction, self.pace_s, self.reserve)

    def is_violated(self, times: float = 1.0) -> bool:
        """Return whether the SLO is violated with a multiple of the present share."""
        pace_s = self.pace_s / times
        return is_violated(self.elapsed_s, self.done, self.prediction, pace_s, self.reserve)


class _Passed(NamedTuple):
    """Check of a running job that needed no action, and needs none before a time.

    Attributes
    ----------
    status : JobStatus
        Status of the job then: another one needs another check.
    until_s : float
        Time of the next check; infinite for a best-effort job with all of its share.
    reports : tuple of object
        Last reports of a latency-sensitive job then; empty for a best-effort job.
    """

    status: JobStatus
    until_s: float
    reports: tuple[object, ...]


class PassedChecks:
    """Checks of running jobs that need not be repeated yet, under the same forecasts.

    In a large cluster most jobs have the compute that they need, and meet their SLO by far.
    """

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._last_s = -math.inf
        self.by_job: dict[str, _Passed] = {}

    def are_for(self, forecasts: Forecasts, now_s: float) -> bool:
        """Return whether they are valid under forecasts; time must not go back meanwhile."""
        is_later, self._last_s = now_s >= self._last_s, now_s
        return is_later and forecasts is self._forecasts


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
        passed: PassedChecks | None = None,
    ) -> None:
        self._passed = passed
        self._last = {} if passed is None else passed.by_job
        self._still: dict[str, _Passed] = {}  # checks that hold now
        self._state, self._forecasts, self._settings = state, forecasts, settings
        self._capacity, self._tenants = capacity, tenants
        self.actions: list[Action] = []
        self.violated: dict[str, bool] = {}
        self.has_shrunk_jobs = False

    def run(self) -> list[Action]:
        """Check latency-sensitive jobs first, then return compute to best-effort jobs."""
        sensitive: list[tuple[Job, JobStatus]] = []
        others: list[tuple[str, JobStatus]] = []
        for job_id, status in chain(self._state.running.items(), self._state.paused.items()):
            if self._still_holds(job_id, status) or len(status.allocations) != 1:
                continue
            job = self._state.job(job_id)
            if job.latency_sensitive:
                sensitive.append((job, status))
            else:
                others.append((job_id, status))
        for job, status in sensitive:
            self._check_slo(job, status)
        contended = {
            status.allocations[0].device for job, status in sensitive if self.violated[job.job_id]
        }
        others += [
            (job_id, self._state.status(job_id))
            for job_id in self._tenants.changed
            if job_id in self._still
        ]
        for job_id, status in others:
            is_contended = status.allocations[0].device in contended
            self._restore(self._state.job(job_id), status, is_contended)
        if self._passed is not None:
            self._passed.by_job = self._still
        return self.actions

    def _still_holds(self, job_id: str, status: JobStatus) -> bool:
        """Return whether the last check of a job need not be repeated yet."""
        found = self._last.get(job_id)
        if found is None or found.status is not status or self._state.now_s >= found.until_s:
            return False
        if found.reports:
            progress, use = self._state.last_reports(job_id)
            if progress is not found.reports[0] or use is not found.reports[1]:
                return False
            self.violated[job_id] = False
        self._still[job_id] = found
        return True

    def _check_slo(self, job: Job, status: JobStatus) -> None:
        (allocation,), state = status.allocations, self._state
        check = _Check(
            max(0.0, state.now_s - status.first_start_s),
            state.progress(job.job_id),
            state.pace_s(job.job_id),
            self._prediction(job, allocation),
            self._settings.reserve,
        )
        slack_s = check.slack_s()
        violated_slo = self.violated[job.job_id] = slack_s < 0
        busy = not violated_slo and is_too_busy(state.usage_milli(job.job_id), check.prediction)
        if not violated_slo and not busy:
            self._note_passed_slo(job.job_id, status, check, slack_s)
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

    def _note_passed_slo(
        self, job_id: str, status: JobStatus, check: _Check, slack_s: float
    ) -> None:
        """Note until when a job meets its SLO whatever happens, but for other reports."""
        most_milli = self._state.most_usage_milli(job_id)
        if status.phase is Phase.RUNNING and not is_too_busy(most_milli, check.prediction):
            until_s = self._state.now_s + _ROUNDED_DOWN * slack_s
            self._still[job_id] = _Passed(status, until_s, self._state.last_reports(job_id))

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

    def _restore(self, job: Job, status: JobStatus, is_contended: bool) -> None:
        """Return compute to a best-effort job that was shrunk, as far as it is free."""
        allocation = self._tenants.allocation_of(job.job_id)
        if allocation is None:
            return
        target_milli = share_of(self._prediction(job, allocation), self._settings.overcommit)
        lack = target_milli - allocation.compute_milli
        if lack <= 0:
            if status.allocations[0] == allocation:
                self._still[job.job_id] = _Passed(status, math.inf, ())
            return
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
