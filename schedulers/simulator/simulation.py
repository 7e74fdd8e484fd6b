"""Discrete-event simulation of a cluster: an event heap, with progress integrated between events.

Only jobs on devices where something changed are retimed. All events of one moment are applied
before the policy decides, once: finished jobs first, then repairs, failures and arrivals.

Costs of moving a job: a preempted job releases its devices at once and keeps its progress. It pays
for the checkpoint and the restart when it starts again. So does a job that moves to other devices.
An elastic job that keeps at least one of its devices stops for ``ResizeCosts`` only. A new share of
the same devices costs nothing. A job whose device fails falls back to its last periodic checkpoint;
an elastic job continues on its other devices, if they are enough for it, and loses no work. A job
that does not fit into a device's memory together with the co-located jobs holds its devices for
``OVERFLOW_S`` and then is pending again.
"""

from __future__ import annotations

import gc
import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from presage.errors import ImpossibleActionError
from presage.features.hazard.outage import Outage
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.backend import (
    Backend,
    ClusterView,
    Decision,
    make_ledger,
    reconcile,
)
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import WAITING, JobStatus, Phase
from presage.schedulers.core.ledger import Change
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.core.users.decayed_use import DecayedUse
from presage.schedulers.core.users.quota import NO_QUOTAS, Quotas
from presage.schedulers.faults.detection import Detection, FaultEvent, FaultStage, fault_events
from presage.schedulers.faults.fault import Fault
from presage.schedulers.faults.fault_history import check_units, make_history
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth
from presage.schedulers.simulator.ground_truth.switch_sharing import PlacedGang, SwitchSharing
from presage.schedulers.simulator.job_run import Run
from presage.schedulers.simulator.resize_costs import MEASURED_RESIZE, ResizeCosts
from presage.schedulers.simulator.results.event_log import EventLog
from presage.schedulers.simulator.traffic import GangRun

OVERFLOW_S = 30.0  # from the start of a job that does not fit to its out-of-memory error
MAX_OVERFLOWS = 8  # out-of-memory errors of a job before it has failed
_PROGRESS_EVERY = 500  # ended jobs between two progress reports
_ACTION_NAMES = {
    action: action.__name__.lower()
    for action in (Reserve, Start, Preempt, Resize, Migrate, Pause, Resume, Reject)
}
MAX_IDLE_WAKES = 1000  # consecutive decisions that only request a wake-up, while nothing runs


@dataclass(frozen=True, slots=True)
class JobResult:
    """Outcome of a job; times in seconds since the start of the trace.

    ``solo_s`` is the true solo run time on the fastest usable kind of device. ``slo_s`` is the
    predicted upper bound of the run time of a latency-sensitive job at its first start; infinite
    without a forecast.
    """

    job: Job
    phase: Phase
    first_start_s: float | None
    end_s: float
    status: JobStatus
    solo_s: float
    slo_s: float = math.inf

    @property
    def has_violated_slo(self) -> bool:
        """Whether the time from the first start to the end exceeds ``slo_s``."""
        if self.first_start_s is None:
            return False
        return self.end_s - self.first_start_s > self.slo_s * (1 + 1e-9)


class Simulation(Backend):
    """Simulation of one trace under one policy.

    Parameters
    ----------
    jobs : sequence of Job
        Sorted by submission time.
    faults : sequence of Fault
        Sorted by time.
    detection : Detection, optional
        When the policy learns of failures; by default at once.
    earlier_outages : iterable of Outage
        Outages that were over before the start, at negative times: history for the policy.
    hazards : HazardForecaster, optional
        Source of the hazards that a policy with ``needs.hazards`` reads.
    stop_on_impossible : bool
        Whether an impossible action of the policy raises an error; else it is logged and ignored.
    resize_costs : ResizeCosts
        Time that an elastic job loses when it starts and when its number of devices changes.
    switch_sharing : SwitchSharing, optional
        Step times of gangs that share switches; by default all AllReduces run by ring.
    forecasts : Forecasts, optional
        Forecasts to use instead of new ones of the forecaster.
    quotas : Quotas, optional
        What users may hold at once, and their weights for fair share.
    use : DecayedUse, optional
        Use of users before the start, for a policy with fair share.
    pass_interval_s : float
        Time between two scheduling passes; 0 for a decision at each moment with events. Else events
        take effect at their times, and the policy decides about them at the next multiple of it. A
        large cluster has fewer passes than events, as with real schedulers.

    Attributes
    ----------
    forecasts : Forecasts
        Forecasts that the policy reads, with counts of the missing ones.
    results : list of JobResult
        Ended jobs, in the order of their end.
    busy_s : float
        Device-seconds with a job on the device, until the last job ended, without reservations.
    lost_device_s : float
        Device-seconds in which jobs did work that failures undid, or restarted.
    preemptions : int
        Number of preemptions by the policy.
    explanations : list of (float, str, str)
        Time, job and reason of each start that the policy explains.
    gang_runs : list of GangRun
        Runs of gangs, each from a start to the release of its devices.
    jobs_on_switches : set of str
        Jobs that had a factor of ``switch_sharing``.
    partial_memory_starts, memory_exceeded : int
        Number of jobs first allocated a part of a device's memory, and of those that took more.
    """

    is_atomic = True

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        forecaster: Forecaster,
        ground_truth: GroundTruth,
        jobs: Sequence[Job],
        *,
        faults: Sequence[Fault] = (),
        detection: Detection | None = None,
        earlier_outages: Iterable[Outage] = (),
        hazards: HazardForecaster | None = None,
        seed: int = 0,
        stop_on_impossible: bool = True,
        resize_costs: ResizeCosts = MEASURED_RESIZE,
        switch_sharing: SwitchSharing | None = None,
        forecasts: Forecasts | None = None,
        quotas: Quotas = NO_QUOTAS,
        use: DecayedUse | None = None,
        pass_interval_s: float = 0.0,
    ) -> None:
        self._pass_interval_s, self._pass_at_s = pass_interval_s, 0.0
        self._cluster, self._policy, self._ground_truth = cluster, policy, ground_truth
        self._switch_sharing = switch_sharing
        self._gangs: dict[str, PlacedGang] = {}  # on several nodes, if switches are shared
        self._switch_factors: Mapping[str, float] = {}
        self.jobs_on_switches: set[str] = set()
        self._resize_costs = resize_costs
        self._jobs, self._detection = jobs, detection
        self._faults = fault_events(faults, detection)
        self._stopped: set[tuple[int, int]] = set()  # units that are down, which is not known yet
        check_units(faults, cluster)
        self._stop = stop_on_impossible
        self._rng = Random(seed)  # noqa: S311 - not used for secrets
        self.forecasts = forecasts or Forecasts(
            forecaster, cluster, hazards=hazards if policy.needs.hazards else None
        )
        self._progress, self._usage = Progress(), Usage()
        self.ledger = make_ledger(
            cluster, policy, self.forecasts, outages=make_history(earlier_outages, cluster),
            quotas=quotas,
        )  # fmt: skip
        self._quotas, self._use = quotas, None
        if half_life_s := policy.needs.fair_share_s:
            self._use = DecayedUse(half_life_s) if use is None else use.copy(half_life_s)
        state = State(self.ledger, 0.0, self._progress, self._usage)
        self._view = ClusterView(self.ledger, state, self.forecasts)
        self.log = EventLog()
        self.explanations: list[tuple[float, str, str]] = []
        self.results: list[JobResult] = []
        self.gang_runs: list[GangRun] = []
        self.busy_s = self._held_s = self.lost_device_s = 0.0
        self.preemptions = 0
        self.partial_memory_starts = self.memory_exceeded = 0
        self._runs: dict[str, Run] = {}
        self._slo_s: dict[str, float] = {}  # by started latency-sensitive job
        self._heap: list[tuple[float, int, str]] = []  # end of a run, its timing, its job
        self._wakes: list[float] = []
        self._measured: list[tuple[float, int, str]] = []  # as _heap: when a speed is known
        self._arrived = 0
        self._decisions = 0
        self._now_s = 0.0

    @property
    def policy(self) -> Policy:
        """Policy that decides."""
        return self._policy

    def run(self, progress: Callable[[int], None] = lambda ended: None) -> None:
        """Simulate until every job has ended, or no pending job can ever start.

        ``progress`` is called every ``_PROGRESS_EVERY`` ended jobs with the number of ended jobs.
        """
        with disabled_gc():
            for _ in self.moments(progress):
                self.decide()

    def moments(self, progress: Callable[[int], None] = lambda ended: None) -> Iterator[State]:
        """Yield the state at each moment with events, for a caller that decides by :meth:`take`.

        ``run`` does the same with the decisions of the policy.
        """
        arrivals, faults = self._arrival_queue(), deque(self._faults)
        idle_wakes = reported = 0
        while True:
            self._drop_outdated_ends()
            now_s = min(
                arrivals[0].submit_s if arrivals else math.inf,
                faults[0].at_s if faults else math.inf,
                self._heap[0][0] if self._heap else math.inf,
                self._wakes[0] if self._wakes else math.inf,
            )
            if now_s == math.inf or not (arrivals or self._runs):
                break
            self._held_s += self.ledger.busy * (now_s - self._now_s)
            if self._use is not None:
                self._use.follow(self.ledger.held_milli, self._now_s)
                self.ledger.rank_users(self._use.per_weight(self._quotas, now_s))
            self._now_s = now_s
            is_external = self._apply_events(arrivals, faults)
            if not self._is_pass():
                idle_wakes = 0 if is_external else idle_wakes
                continue
            yield self.observe(now_s).state
            if is_external or self.ledger.running:
                idle_wakes = 0
            else:
                idle_wakes += 1
            # While nothing runs, only an arrival or a repair changes the state: a policy that
            # requests wake-ups without end must not postpone it for ever.
            if idle_wakes > MAX_IDLE_WAKES:
                if not (arrivals or faults):
                    break
                self._wakes.clear()
                idle_wakes = 0
            if len(self.results) >= reported + _PROGRESS_EVERY:
                reported = len(self.results)
                progress(reported)

    def _is_pass(self) -> bool:
        """Return whether the policy decides at this moment; else request the next pass."""
        interval_s, now_s = self._pass_interval_s, self._now_s
        if not interval_s or now_s == round(now_s / interval_s) * interval_s:
            return True
        at_s = (math.floor(now_s / interval_s) + 1) * interval_s
        if self._pass_at_s < at_s:
            self._pass_at_s = at_s
            heapq.heappush(self._wakes, at_s)
        return False

    def _arrival_queue(self) -> deque[Job]:
        """Return the jobs to submit, by submission time."""
        return deque(self._jobs)

    def _apply_events(self, arrivals: deque[Job], faults: deque[FaultEvent]) -> bool:
        """Apply the events of this moment and return whether an external event occurred.

        External events are arrivals, failures and repairs.
        """
        now_s = self._now_s
        if self._heap and self._heap[0][0] == now_s:
            self._end_runs()
        is_external = False
        while faults and faults[0].at_s == now_s:
            is_external = True
            self._apply_fault(faults.popleft())
        if arrivals and arrivals[0].submit_s == now_s:
            is_external = True
            self._submit(_take_arrivals(arrivals))
        while self._wakes and self._wakes[0] == now_s:
            heapq.heappop(self._wakes)
        for change in self.ledger.expire(now_s):
            self.log.entries.append((now_s, "expire", change.job.job_id, None))
        while self._measured and self._measured[0][0] <= now_s:
            self._report_measured(*heapq.heappop(self._measured)[1:])
        return is_external

    # Events ---------------------------------------------------------------------------------

    def _submit(self, jobs: Sequence[Job]) -> None:
        self.forecasts.expect(jobs)
        respects_memory = self._policy.needs.respects_memory
        for job in jobs:
            too_small = self.forecasts.too_small(job) if respects_memory else ()
            why = self.ledger.submit(job, self._now_s, too_small)
            self.log.entries.append((self._now_s, "submit", job.job_id, job))
            if why:
                self.log.entries.append((self._now_s, "reject", job.job_id, why))
                self._end_job(job, Phase.REJECTED)
            else:
                self._runs[job.job_id] = Run(job)

    def _drop_outdated_ends(self) -> None:
        """Drop ends computed by an earlier timing from the top of the heap."""
        heap, runs = self._heap, self._runs
        while heap:
            _, timing, job_id = heap[0]
            run = runs.get(job_id)
            if run is not None and run.timing == timing:
                return
            heapq.heappop(heap)

    def _end_runs(self) -> None:
        """End the runs that finish or run out of memory now."""
        heap = self._heap
        changes = []
        while heap and heap[0][0] == self._now_s:
            _, timing, job_id = heapq.heappop(heap)
            run = self._runs.get(job_id)
            if run is None or run.timing != timing:
                continue
            if run.overflows_at == self._now_s:
                changes.append(self._overflow(run))
                continue
            change = self.ledger.end(job_id, Phase.FINISHED, self._now_s)
            changes.append(change)
            run.progress_here += 1.0 - run.progress
            self._count_restart(run, change.before)
            self._record_gang_run(run, change.before)
            self.log.entries.append((self._now_s, "finish", job_id, None))
            self._end_job(run.job, Phase.FINISHED)
        self._retime_neighbors(changes)

    def _end_job(self, job: Job, phase: Phase) -> None:
        self._runs.pop(job.job_id, None)
        self._progress.forget(job.job_id)
        self._usage.forget(job.job_id)
        self.forecasts.forget(job)
        self._record_result(job, phase, self._slo_s.pop(job.job_id, math.inf))

    def _record_result(self, job: Job, phase: Phase, slo_s: float) -> None:
        status = self.ledger.status(job.job_id)
        first_s = status.first_start_s if status.starts else None
        solo_s = min(
            [
                self._ground_truth.solo_s(job, kind, job.gpus)
                for kind in self._cluster.kinds
                if not job.kinds or kind in job.kinds
            ],
            default=math.inf,
        )
        self.busy_s = self._held_s
        self.results.append(JobResult(job, phase, first_s, self._now_s, status, solo_s, slo_s))

    def _record_gang_run(self, run: Run, status: JobStatus) -> None:
        """Record the progress of a gang on the devices that it releases."""
        if len(status.allocations) > 1:
            self.gang_runs.append(GangRun(run.job, status.allocations, run.progress_here))
        run.progress_here = 0.0

    def _count_restart(self, run: Run, status: JobStatus) -> None:
        """Count the restart of a job that stops on these devices, or changes its share of them."""
        self.lost_device_s += len(status.allocations) * run.restarted_s(self._now_s)

    def _apply_fault(self, event: FaultEvent) -> None:
        _, stage, fault = event
        if stage is FaultStage.STOPPED:
            self._stop_jobs(fault)
            return
        if stage is FaultStage.SUSPECTED and self._jobs_at(fault):
            return
        if stage is FaultStage.LOST and self._detection and fault.unit not in self._stopped:
            return  # known since it was suspected
        self._stopped.discard(fault.unit)
        unit = {"node": self._cluster.nodes[fault.node].name}
        if fault.device is not None:
            unit["device"] = self._cluster.name_of(fault.device)
        self.log.entries.append((self._now_s, "repair" if fault.repaired else "fail", "", unit))
        if fault.repaired:
            self.ledger.repair(fault.node, self._now_s, fault.device)
            return
        changes = self.ledger.fail(fault.node, self._now_s, fault.device)
        for job, before, after in changes:
            if after.phase is Phase.RUNNING:
                self.log.entries.append((self._now_s, "shrink", job.job_id, after.allocations))
                self._continue_resized(self._runs[job.job_id], before, after, after_failure=True)
                continue
            reserved = before.phase is Phase.RESERVED
            self.log.entries.append(
                (self._now_s, "expire" if reserved else "lost", job.job_id, None)
            )
            if not reserved:
                run = self._runs[job.job_id]
                self._count_restart(run, before)
                self.lost_device_s += len(before.allocations) * run.roll_back(self._now_s)
                self._record_gang_run(run, before)
                self._report(run)
        self._retime_neighbors(changes)

    def _stop_jobs(self, fault: Fault) -> None:
        """Stop the jobs of a node or device that fails unnoticed; elastic jobs notice it later."""
        self._stopped.add(fault.unit)
        for job_id in self._jobs_at(fault):
            run, status = self._runs[job_id], self.ledger.status(job_id)
            if status.phase is Phase.RUNNING and not run.job.is_elastic:
                self._count_restart(run, status)
                self.lost_device_s += len(status.allocations) * run.roll_back(self._now_s)

    def _jobs_at(self, fault: Fault) -> list[str]:
        """Return the jobs of a node or device."""
        devices = self._cluster.devices_of(fault.node) if fault.device is None else (fault.device,)
        return list(dict.fromkeys(one for device in devices for one in self.ledger.jobs_on(device)))

    def _is_stopped(self, job: Job, status: JobStatus) -> bool:
        """Return whether a device of a job is down, which is not known yet."""
        if job.is_elastic or not self._stopped:
            return False
        devices = [allocation.device for allocation in status.allocations]
        units = [(self._cluster.node_of[device], device) for device in devices]
        return any(unit in self._stopped or (unit[0], -1) in self._stopped for unit in units)

    def _continue_resized(
        self, run: Run, before: JobStatus, after: JobStatus, *, after_failure: bool
    ) -> None:
        """Continue an elastic job that has kept some of its devices."""
        former_pace_s = run.pace_s
        self._count_restart(run, before)
        run.hold(self._now_s)
        self._record_gang_run(run, before)
        costs = self._resize_costs
        run.restart_s += costs.after_failure_s if after_failure else costs.planned_s
        if costs.startup_s and not {*after.allocations} <= {*before.allocations}:
            gain = max(0.0, 1.0 - self._pace_s(run.job, after, run.interval_s) / former_pace_s)
            run.restart_s += costs.startup_s * gain
            run.ready_s = self._now_s + costs.startup_s
        if after_failure:  # else the caller sets the pace, after all changes of a decision
            run.resume(self._now_s)
            self._set_pace(run, after)

    def _overflow(self, run: Run) -> Change:
        job = run.job
        run.roll_back(self._now_s)
        self._report(run)
        self.log.entries.append((self._now_s, "overflow", job.job_id, None))
        status = self.ledger.status(job.job_id)
        self._record_gang_run(run, status)
        if self._too_large(job, status) or status.overflows + 1 >= MAX_OVERFLOWS:
            change = self.ledger.end(job.job_id, Phase.FAILED, self._now_s)
            self._end_job(job, Phase.FAILED)
            return change
        return self.ledger.requeue(job.job_id, self._now_s, overflow=True)

    def _too_large(self, job: Job, status: JobStatus) -> bool:
        """Return whether a job that ran out of memory does not fit any device that it may use.

        If it had no co-located jobs, devices with as little memory are excluded for it.
        """
        if any(
            self.ledger.jobs_on(allocation.device) != (job.job_id,)
            for allocation in status.allocations
        ):
            return False
        kinds = {self._cluster.kind_of(allocation.device) for allocation in status.allocations}
        smallest = min(kinds, key=lambda kind: (self._cluster.memory_of[kind], kind))
        return bool(self.ledger.exclude(job.job_id, smallest))

    # Decisions ------------------------------------------------------------------------------

    def observe(self, now_s: float) -> ClusterView:
        """Return the simulated cluster at the current time."""
        self._view.state.now_s = now_s  # a new view costs a tenth of a decision
        return self._view

    def apply(self, decision: Decision, now_s: float) -> None:
        """Log the actions of a decision, and retime the jobs that it changed."""
        self.log.entries.append((now_s, "decide", "", self._decisions))
        for action in decision.actions:
            self._note(action)
        self._time(decision.changes)

    def take(self, actions: Sequence[Action]) -> None:
        """Carry out actions at the present moment.

        Raises
        ------
        ImpossibleActionError
            An action is impossible.
        """
        self._decide(_Taken(actions))

    def decide(self) -> None:
        """Let the policy decide at the present moment."""
        self._decide(self._policy)

    def _decide(self, policy: Policy) -> None:
        self._decisions += 1
        for rejection in reconcile(self, policy, self._rng, self._now_s).rejections:
            # Only the reason: the action may be anything, even content that no line can hold.
            self.log.entries.append((self._now_s, "decide", "", self._decisions))
            self.log.entries.append((self._now_s, "refused", "", {"reason": rejection.why}))
            if self._stop:
                raise ImpossibleActionError(rejection.why)

    def _note(self, action: Action) -> None:
        if isinstance(action, Wake):
            self.log.entries.append((self._now_s, "wake", "", action.at_s))
            if self._now_s < action.at_s < math.inf:
                heapq.heappush(self._wakes, action.at_s)
            return
        self.preemptions += isinstance(action, Preempt)
        job_id, *rest = action
        details: object = rest[0] if rest else None
        if isinstance(action, Reserve):
            heapq.heappush(self._wakes, action.until_s)
            details = {"allocations": action.allocations, "until_s": action.until_s}
        self.log.entries.append((self._now_s, _ACTION_NAMES[type(action)], job_id, details))
        if isinstance(action, Start) and (why := self._policy.explanation(job_id)):
            self.explanations.append((self._now_s, job_id, why))

    # Timing ---------------------------------------------------------------------------------

    def _time(self, changes: Sequence[Change]) -> None:
        """Retime the jobs that a decision changed and the jobs co-located with them."""
        resumed: list[tuple[Run, JobStatus]] = []
        released = {change.job.job_id for change in changes if change.after.phase in WAITING}
        for job, before, after in _net(changes):
            if after.phase is Phase.REJECTED:
                self._end_job(job, Phase.REJECTED)
                continue
            run = self._runs[job.job_id]
            moved = job.job_id in released or _has_moved(before, after)
            if before.phase in WAITING:
                pass  # it did not run
            elif moved and job.job_id not in released and _is_resized(job, before, after):
                self._continue_resized(run, before, after, after_failure=False)
            elif moved:
                self._count_restart(run, before)
                run.checkpoint(self._now_s)
                self._record_gang_run(run, before)
            else:
                self._count_restart(run, before)
                run.hold(self._now_s)
            self._report(run)
            if after.phase is not Phase.RUNNING:
                continue
            if before.phase in WAITING and job.is_elastic:
                run.restart_s += self._resize_costs.startup_s
            if moved and run.interval_s < math.inf:
                run.interval_s = self._policy.checkpoint_interval_s(
                    job, after.allocations, self._view.state, self.forecasts
                )
            self._resume(run, after.allocations[0], moved=moved)
            resumed.append((run, after))
        for run, status in resumed:
            self._set_pace(run, status)
        self._retime_neighbors(changes)

    def _resume(self, run: Run, first: Allocation, *, moved: bool) -> None:
        """Resume a job; with ``moved``, on devices that it did not have before."""
        job = run.job
        if job.latency_sensitive and job.job_id not in self._slo_s:
            kind = self._cluster.kind_of(first.device)
            self._slo_s[job.job_id] = self.forecasts.prediction(job, kind).slo_s
        if moved:
            if not run.arrival:
                self._count_memory_excess(job, first)
            self._arrived += 1
            run.arrival = self._arrived
        run.resume(self._now_s)

    def _retime_neighbors(self, changes: Iterable[Change]) -> None:
        """Retime the jobs that share a device or a switch with a changed job."""
        changes = list(changes)
        if self._switch_sharing is not None:
            self._retime_gangs(self._switch_sharing, changes)
        if not self.ledger.was_shared:
            return
        changed = {change.job.job_id for change in changes}
        neighbors: dict[str, None] = {}
        for _, before, after in changes:
            for allocation in (*before.allocations, *after.allocations):
                colocated = self.ledger.jobs_on(allocation.device)
                neighbors.update((job_id, None) for job_id in colocated if job_id not in changed)
        self._retime(neighbors)

    def _retime(self, job_ids: Iterable[str]) -> None:
        """Recompute the speed of running jobs."""
        for job_id in job_ids:
            status = self.ledger.status(job_id)
            if status.phase is Phase.RUNNING:
                run = self._runs[job_id]
                run.advance(self._now_s)
                self._set_pace(run, status)

    def _retime_gangs(self, sharing: SwitchSharing, changes: Iterable[Change]) -> None:
        """Update the gangs on several nodes, and retime those whose share of switches changes."""
        former = dict(self._gangs)
        for job, _, _ in changes:
            self._gangs.pop(job.job_id, None)
            status = self.ledger.status(job.job_id)
            nodes = self._node_names(status) if status.phase is Phase.RUNNING else ()
            if len(nodes) > 1:
                step_s = self._step_s(job, status)
                gradient_bytes = job.features.memory.gradient_bytes if job.features else 0
                self._gangs[job.job_id] = PlacedGang(job.job_id, nodes, step_s, gradient_bytes)
        if self._gangs == former:
            return
        before, now = self._switch_factors, sharing.factors(tuple(self._gangs.values()))
        self._switch_factors = now
        self.jobs_on_switches.update(now)
        self._retime([j for j in self._gangs if before.get(j, 1.0) != now.get(j, 1.0)])

    def _node_names(self, status: JobStatus) -> tuple[str, ...]:
        nodes = {self._cluster.node_of[allocation.device] for allocation in status.allocations}
        return tuple(self._cluster.nodes[node].name for node in sorted(nodes))

    def _step_s(self, job: Job, status: JobStatus) -> float:
        """Return the step time of a job with AllReduce by ring; 0 if its steps are unknown."""
        return self._run_time_s(job, status) / job.iterations if job.iterations else 0.0

    def _count_memory_excess(self, job: Job, allocation: Allocation) -> None:
        """Count a job that is allocated a part of a device's memory, and one that takes more."""
        whole = self._cluster.full_allocations[allocation.device]
        if allocation.memory_bytes < whole.memory_bytes:
            peak_bytes = self._ground_truth.memory_bytes(
                job, self._cluster.kind_of(allocation.device)
            )
            self.partial_memory_starts += 1
            self.memory_exceeded += peak_bytes > allocation.memory_bytes

    def _set_pace(self, run: Run, status: JobStatus) -> None:
        if self._is_stopped(run.job, status):
            run.pace_s, run.timing = math.inf, run.timing + 1
            return
        run.pace_s = self._pace_s(run.job, status, run.interval_s)
        run.timing += 1
        if not self._overflows(run, status):
            run.overflows_at = math.inf
        elif run.overflows_at == math.inf:
            run.overflows_at = self._now_s + OVERFLOW_S
        end_s = max(run.since_s + (1.0 - run.progress) * run.pace_s, self._now_s)
        heapq.heappush(self._heap, (min(end_s, run.overflows_at), run.timing, run.job.job_id))
        self._report(run, status)
        if run.job.is_elastic and run.pace_s > 0:
            measuring_s = self._resize_costs.measuring_s
            if not measuring_s:
                self._report_measured(run.timing, run.job.job_id)
            else:
                known_s = max(run.since_s, run.ready_s) + measuring_s
                heapq.heappush(self._measured, (known_s, run.timing, run.job.job_id))
                heapq.heappush(self._wakes, known_s)

    def _report_measured(self, timing: int, job_id: str) -> None:
        """Report the speed of an elastic job at its size, unless its timing has changed since.

        Co-located jobs slow it down: then its speed is not that of its size.
        """
        run = self._runs.get(job_id)
        if run is None or run.timing != timing:
            return
        status, node_of = self.ledger.status(job_id), self._cluster.node_of
        if any(len(self.ledger.jobs_on(one.device)) > 1 for one in status.allocations):
            return
        nodes = len({node_of[allocation.device] for allocation in status.allocations})
        self._progress.report_size(job_id, len(status.allocations), nodes, run.pace_s)

    def _report(self, run: Run, status: JobStatus | None = None) -> None:
        if run.job.latency_sensitive:
            busy_milli = 0.0 if status is None else self._busy_milli(run, status)
            self._usage.report(run.job.job_id, self._now_s, busy_milli)
        since_s = self._now_s if run.pace_s == math.inf else run.since_s
        self._progress.report(run.job.job_id, run.progress, since_s, _per_s(run.pace_s))

    def _busy_milli(self, run: Run, status: JobStatus) -> float:
        """Return the milli-devices of its first device that a job keeps busy at its pace."""
        kind = self._cluster.kind_of(status.allocations[0].device)
        solo_s = self._ground_truth.solo_s(run.job, kind, len(status.allocations))
        part = min(1.0, solo_s / run.pace_s) if run.pace_s > 0 else 1.0
        return part * self._ground_truth.compute_milli(run.job, kind)

    def _pace_s(self, job: Job, status: JobStatus, interval_s: float) -> float:
        """Return the run time of the whole job as allocated, with its checkpoints."""
        run_s = self._run_time_s(job, status) * self._switch_factors.get(job.job_id, 1.0)
        return run_s * (1 + job.checkpointing.cost_s / interval_s)

    def _run_time_s(self, job: Job, status: JobStatus) -> float:
        """Return the run time of the whole job by ring: that of the gang's slowest member."""
        slowest, timed_kinds = 0.0, set()
        members, node_of = len(status.allocations), self._cluster.node_of
        nodes = 1
        if members > 1:
            nodes = len({node_of[allocation.device] for allocation in status.allocations})
        for allocation in status.allocations:
            kind = self._cluster.kind_of(allocation.device)
            colocated = self.ledger.jobs_on(allocation.device)
            if len(colocated) == 1 and allocation.compute_milli == FULL_DEVICE_MILLI:
                if kind in timed_kinds:
                    continue
                timed_kinds.add(kind)
                slowdown = 1.0
            else:
                slowdown = self._slowdown(job, kind, allocation.device, colocated)
            solo_s = self._ground_truth.solo_s(job, kind, members)
            if nodes > 1:
                solo_s *= self._ground_truth.spread(job, kind, members, nodes)
            slowest = max(slowest, solo_s * slowdown)
        return slowest

    def _slowdown(self, job: Job, kind: str, device: int, colocated: Sequence[str]) -> float:
        members = []
        for job_id in colocated:
            status = self.ledger.status(job_id)
            if status.phase is Phase.RUNNING:
                allocation = next(g for g in status.allocations if g.device == device)
                members.append((self._runs[job_id].job, allocation.compute_milli))
        slowdowns = self._ground_truth.slowdowns(kind, members)
        return next(s for (member, _), s in zip(members, slowdowns, strict=True) if member is job)

    def _overflows(self, run: Run, status: JobStatus) -> bool:
        """Return whether a device has too little memory for the job and those that came before."""
        fitting_kinds: set[str] = set()  # kinds on which it fits without co-located jobs
        for allocation in status.allocations:
            node = self._cluster.nodes[self._cluster.node_of[allocation.device]]
            colocated = self.ledger.jobs_on(allocation.device)
            if len(colocated) == 1 and node.kind in fitting_kinds:
                continue
            runs = (
                self._runs[job_id]
                for job_id in colocated
                if self.ledger.status(job_id).phase is not Phase.RESERVED
            )
            earlier = [other.job for other in runs if other.arrival <= run.arrival]
            if not self._ground_truth.fits(node.kind, node.memory_bytes, earlier):
                return True
            if len(colocated) == 1:
                fitting_kinds.add(node.kind)
        return False


class _Taken(Policy):
    """Policy that decides what it was made with."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        return self._actions


def _take_arrivals(arrivals: deque[Job]) -> list[Job]:
    """Remove and return the jobs that are submitted at the time of the first one."""
    now_s = arrivals[0].submit_s
    taken = []
    while arrivals and arrivals[0].submit_s == now_s:
        taken.append(arrivals.popleft())
    return taken


@contextmanager
def disabled_gc() -> Iterator[None]:
    """Disable garbage collection during a simulation.

    It takes a sixth of the time, and simulations create no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _per_s(pace_s: float) -> float:
    return 1.0 / pace_s if pace_s > 0 else 0.0


def _has_moved(before: JobStatus, after: JobStatus) -> bool:
    """Return whether a job changed its devices; new shares of the same devices apply at once."""
    return before.phase in WAITING or {allocation.device for allocation in before.allocations} != {
        allocation.device for allocation in after.allocations
    }


def _is_resized(job: Job, before: JobStatus, after: JobStatus) -> bool:
    """Return whether an elastic job continues with some of the devices that it had."""
    kept = {allocation.device for allocation in after.allocations}
    return job.is_elastic and any(one.device in kept for one in before.allocations)


def _net(changes: Collection[Change]) -> Iterable[Change]:
    """Merge several changes of a job in a batch into one."""
    if len(changes) == 1:
        return changes
    net: dict[str, Change] = {}
    for change in changes:
        before = net.get(change.job.job_id, change).before
        net[change.job.job_id] = Change(change.job, before, change.after)
    return net.values()
