"""Simulation that starts from a snapshot of a cluster, and stops once its probes have ended."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from presage.schedulers.core.backend import Decision
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth
from presage.schedulers.simulator.job_run import Run
from presage.schedulers.simulator.simulation import Simulation, disabled_gc
from presage.schedulers.what_if.snapshot import Snapshot


class ArrivalQueue(deque[Job]):
    """Queue of jobs that are drawn when they are needed: horizons may be far away."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        super().__init__()
        self._jobs = jobs
        self._draw()

    def popleft(self) -> Job:
        """Remove and return the first job."""
        first = super().popleft()
        if not self:
            self._draw()
        return first

    def _draw(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            self.append(job)


class ResumedSimulation(Simulation):
    """Simulation from a snapshot onwards; the policy decides once at its start.

    Parameters
    ----------
    later : iterator of Job
        Later arrivals by submission time.
    elapsed_s : dict of str to float
        Run time so far of jobs whose pace is not measured: it is a part of their run time.
    until_started, until_ended : set of str
        Jobs of interest: the simulation stops once they have started, and ended.
    reports_elapsed : bool
        Whether the policy sees the part of the forecast run time that has passed since a job's
        start, and not its progress: then it plans that a job ends that long after its start.

    Attributes
    ----------
    starts_s, ends_s : dict of str to float
        When the jobs of interest first started after the snapshot, and ended; an end is infinite
        if the job did not finish.
    refused : dict of str to str
        Why jobs could not be entered, by job id.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        forecasts: Forecasts,
        ground_truth: GroundTruth,
        later: Iterator[Job],
        *,
        elapsed_s: dict[str, float],
        until_started: set[str],
        until_ended: set[str],
        reports_elapsed: bool = False,
        seed: int,
    ) -> None:
        super().__init__(
            snapshot.cluster, policy, NoForecasts(), ground_truth, (), seed=seed,
            stop_on_impossible=False, forecasts=forecasts, quotas=snapshot.quotas,
            use=snapshot.use,
        )  # fmt: skip
        self._later, self._elapsed_s = later, elapsed_s
        self._reports_elapsed = reports_elapsed
        self.starts_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        self._unstarted, self._unended = set(until_started), set(until_ended)
        self._now_s = snapshot.now_s
        self._wakes = [snapshot.now_s]
        self._returning = deque(sorted(snapshot.returning, key=lambda one: one.at_s))
        self._arrivals_order = count(1)
        self._enter(snapshot)

    def run_until(self, horizon_s: float, should_stop: Callable[[], bool]) -> bool:
        """Simulate until all jobs of interest have started and ended, or until ``horizon_s``.

        Return False if it was stopped before.
        """
        with disabled_gc():
            for state in self.moments():
                if state.now_s > horizon_s:
                    break
                if should_stop():
                    return False
                self._enter_returning()
                self._decide(self.policy)
                if not (self._unstarted or self._unended):
                    break
        return True

    def apply(self, decision: Decision, now_s: float) -> None:
        """Carry out a decision, and note the starts of probes."""
        super().apply(decision, now_s)
        if self._unstarted:
            for change in decision.changes:
                if change.after.phase is Phase.RUNNING and change.job.job_id in self._unstarted:
                    self._unstarted.discard(change.job.job_id)
                    self.starts_s[change.job.job_id] = now_s

    # ----------------------------------------------------------------------------------------

    def _arrival_queue(self) -> deque[Job]:
        return ArrivalQueue(self._later)

    def _report(self, run: Run, status: JobStatus | None = None) -> None:
        super()._report(run, status)
        if not self._reports_elapsed:
            return
        done, per_s = 0.0, 0.0
        if status is not None and status.phase is Phase.RUNNING and status.allocations:
            kind = self._cluster.kind_of(status.allocations[0].device)
            planned_s = self.forecasts.prediction(run.job, kind).runtime_s
            if 0 < planned_s < math.inf:
                done = status.seconds_since_start(self._now_s) / planned_s
                per_s = 1.0 / planned_s
        self._progress.report(run.job.job_id, min(1.0, done), self._now_s, per_s)

    def _record_result(self, job: Job, phase: Phase, slo_s: float) -> None:
        """Record nothing: only the jobs of interest matter."""

    def _end_job(self, job: Job, phase: Phase) -> None:
        super()._end_job(job, phase)
        if job.job_id in self._unended or job.job_id in self._unstarted:
            self._unended.discard(job.job_id)
            self._unstarted.discard(job.job_id)
            self.ends_s[job.job_id] = self._now_s if phase is Phase.FINISHED else math.inf

    def _enter(self, snapshot: Snapshot) -> None:
        """Enter the jobs of a snapshot with their progress."""
        for node in snapshot.down:
            self.ledger.fail(node, self._now_s, is_outage=False)
        for device in snapshot.failed_devices:
            node = snapshot.cluster.node_of[device]
            self.ledger.fail(node, self._now_s, device, is_outage=False)
        self.forecasts.expect(snapshot.jobs.values())
        for job_id, status in (*snapshot.active.items(), *snapshot.pending.items()):
            done = snapshot.progress.at(job_id, self._now_s)
            self._enter_job(snapshot.jobs[job_id], status, done)
        for one in self._returning:
            self._runs[one.job.job_id] = Run(one.job)  # until then, the simulation must not end
            heapq.heappush(self._wakes, max(self._now_s, one.at_s))
        running = [
            (run, self.ledger.status(job_id))
            for job_id, run in self._runs.items()
            if job_id in self.ledger.running
        ]
        for run, status in running:
            run.progress = self._progress_of(run, status)
            self._set_pace(run, status)

    def _enter_job(self, job: Job, status: JobStatus, done: float) -> None:
        small = self.forecasts.too_small(job) if self.policy.needs.respects_memory else ()
        why = self.ledger.sync(job, status, small)
        if not why and self.ledger.gate is not None and status.phase is Phase.PENDING:
            why = self.ledger.gate.why_never(job, status)
        if why:
            self.refused[job.job_id] = why
            self._unstarted.discard(job.job_id)
            self._unended.discard(job.job_id)
            return
        job = self.ledger.jobs[job.job_id]
        run = Run(job, progress=done, since_s=self._now_s, saved_progress=done)
        self._runs[job.job_id] = run
        if status.allocations:
            run.arrival = next(self._arrivals_order)
            self._arrived = run.arrival
        elif done > 0 or self._elapsed_s.get(job.job_id):
            run.progress = self._progress_of(run, status)
            costs = job.checkpointing
            run.restart_s = costs.cost_s + costs.restart_s
        if status.phase is Phase.RESERVED:
            heapq.heappush(self._wakes, status.until_s)
        done = 0.0 if self._reports_elapsed else run.progress
        self._progress.report(job.job_id, done, self._now_s, 0.0, run.saved_progress)

    def _progress_of(self, run: Run, status: JobStatus) -> float:
        """Return the progress of a job, by its run time so far if its pace is not measured."""
        elapsed_s = self._elapsed_s.get(run.job.job_id)
        if not elapsed_s:
            return run.progress
        cluster = self._cluster
        kind = (
            cluster.kind_of(status.allocations[0].device)
            if status.allocations
            else next(kind for kind in cluster.kinds if not run.job.kinds or kind in run.job.kinds)
        )
        total_s = self._ground_truth.solo_s(run.job, kind, run.job.gpus)
        return min(1.0, elapsed_s / total_s) if total_s > 0 else 1.0

    def _enter_returning(self) -> None:
        """Enter jobs whose nodes are lost by now, or have released them."""
        while self._returning and self._returning[0].at_s <= self._now_s:
            one = self._returning.popleft()
            self._runs.pop(one.job.job_id, None)
            status = one.status._replace(phase=Phase.PENDING, allocations=())
            self._enter_job(one.job, status, one.done)
