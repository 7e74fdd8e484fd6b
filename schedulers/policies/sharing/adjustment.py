"""Rebalancing of running jobs: more compute for violated SLOs, less for best effort (N3 to N7).

It covers an agent's own node in a live cluster, and all nodes in the simulator.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

from presage.schedulers.core.action import Action, Pause, Resize, Resume
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.state import ChangeMark, State
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

    In a large cluster most jobs have the compute that they need, and meet their SLO by far. Only
    jobs that have changed, or whose time has come, are checked again.

    Attributes
    ----------
    sensitive : int
        Number of latency-sensitive jobs among them.
    """

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._last_s = -math.inf
        self._mark: ChangeMark | None = None  # at the last check
        self._held: dict[str, _Passed] = {}
        self._due: list[tuple[float, str]] = []  # heap of the ends of held checks
        self._open: set[str] = set()  # jobs that have to be checked each time
        self.sensitive = 0

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._held

    def are_for(self, forecasts: Forecasts, now_s: float) -> bool:
        """Return whether they are valid under forecasts; time must not go back meanwhile."""
        is_later, self._last_s = now_s >= self._last_s, now_s
        return is_later and forecasts is self._forecasts

    def begin(self, state: State) -> list[tuple[str, JobStatus]]:
        """Return the running jobs to check, in the order in which they started."""
        changed = None if self._mark is None else state.changed_since(self._mark)
        self._mark = state.mark()
        if changed is None:
            self._held.clear()
            self._open.clear()
            self.sensitive = 0
            return [*state.running.items()]
        while self._due and self._due[0][0] <= state.now_s:
            changed.add(heapq.heappop(self._due)[1])
        changed |= self._open
        self._open.clear()
        running = [job_id for job_id in changed if job_id in state.running]
        for job_id in changed.difference(running):
            self._drop(job_id)
        running.sort(key=state.run_number)
        found = [(job_id, state.running[job_id]) for job_id in running]
        return [one for one in found if not self._still_holds(*one, state)]

    def hold(self, job_id: str, check: _Passed) -> None:
        """Add the check of a job that needs no action."""
        self._drop(job_id)
        self._held[job_id] = check
        self.sensitive += bool(check.reports)
        if check.until_s < math.inf:
            heapq.heappush(self._due, (check.until_s, job_id))

    def end(self, checked: Iterable[str]) -> None:
        """End a check of these jobs; those that are not held have to be checked each time."""
        self._open.update(job_id for job_id in checked if job_id not in self._held)

    def _still_holds(self, job_id: str, status: JobStatus, state: State) -> bool:
        """Return whether the last check of a job need not be repeated yet; else drop it."""
        found = self._held.get(job_id)
        if found is None:
            return False
        progress, use = state.last_reports(job_id)
        if (
            found.status is status
            and state.now_s < found.until_s
            and (not found.reports or (progress is found.reports[0] and use is found.reports[1]))
        ):
            return True
        self._drop(job_id)
        return False

    def _drop(self, job_id: str) -> None:
        found = self._held.pop(job_id, None)
        if found is not None:
            self.sensitive -= bool(found.reports)


class Rebalancing:
    """One check of all running jobs; ``capacity`` changes with every action.

    Attributes
    ----------
    actions : list of Action
        Decided actions, in order.
    violated : dict of str to bool
        Whether the SLO of each checked latency-sensitive job is violated (N3).
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
        self._passed = PassedChecks(forecasts) if passed is None else passed
        self._state, self._forecasts, self._settings = state, forecasts, settings
        self._capacity, self._tenants = capacity, tenants
        self.actions: list[Action] = []
        self.violated: dict[str, bool] = {}
        self.has_shrunk_jobs = False

    def run(self) -> list[Action]:
        """Check latency-sensitive jobs first, then return compute to best-effort jobs."""
        sensitive: list[tuple[Job, JobStatus]] = []
        others: list[tuple[str, JobStatus]] = []
        jobs = [*self._passed.begin(self._state), *self._state.paused.items()]
        for job_id, status in jobs:
            if len(status.allocations) != 1:
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
            if job_id in self._passed
        ]
        for job_id, status in others:
            is_contended = status.allocations[0].device in contended
            self._restore(self._state.job(job_id), status, is_contended)
        self._passed.end([job.job_id for job, _ in sensitive] + [job_id for job_id, _ in others])
        return self.actions

    @property
    def has_sensitive_jobs(self) -> bool:
        """Whether a latency-sensitive job is on a single device."""
        return bool(self.violated) or self._passed.sensitive > 0

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
            self._passed.hold(job_id, _Passed(status, until_s, self._state.last_reports(job_id)))

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
                self._passed.hold(job.job_id, _Passed(status, math.inf, ()))
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
