"""A cluster, simulated: events in a heap, progress integrated between them.

Only jobs on devices where something changed are timed anew. All events of one moment happen
before the policy decides, once: finished jobs first, then repairs, failures, arrivals.

What it costs to be moved about: a preempted job gives its devices up at once, keeps what it has
done, and pays for its checkpoint when it starts again, beside the restart; so does one that goes on
on other devices, or on more or fewer. Other shares of the same devices cost nothing. A job whose
device fails falls back to its last periodic checkpoint. A job that does not fit into a device's
memory, together with whoever is there, holds its devices for ``OVERFLOW_S`` and waits again.
"""

from __future__ import annotations

import gc
import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from presage.errors import ImpossibleActionError
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
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.compute_usage import Usage
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import WAITING, JobStatus, Phase
from presage.schedulers.core.ledger import Change, Ledger
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Key, Queue
from presage.schedulers.core.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.faults.fault import Fault
from presage.schedulers.simulator.event_log import EventLog
from presage.schedulers.simulator.ground_truth import GroundTruth
from presage.schedulers.simulator.job_run import Run
from presage.schedulers.simulator.traffic import GangRun

T = TypeVar("T")
OVERFLOW_S = 30.0  # from a start to the moment when a job runs out of a device's memory
MOST_OVERFLOWS = 8  # of a job, then it has failed
_TOLD_EVERY = 500  # jobs that ended
_WHAT = {
    action: action.__name__.lower()
    for action in (Reserve, Start, Preempt, Resize, Migrate, Pause, Resume, Reject)
}
IDLE_WAKES = 1000  # of a policy that only ever asks to be woken, while nothing else can happen


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job; times in seconds since the beginning of the trace.

    ``solo_s`` is what the truth says of it alone on the kind of device where it takes least,
    ``promised_s`` what it was foretold to take at most when it was first started, of a
    latency-sensitive job; infinite where nothing was foretold.
    """

    job: Job
    phase: Phase
    first_start_s: float | None
    end_s: float
    status: JobStatus
    solo_s: float
    promised_s: float = math.inf

    @property
    def violated(self) -> bool:
        """Whether it took longer, from its first start to its end, than it was promised."""
        if self.first_start_s is None:
            return False
        return self.end_s - self.first_start_s > self.promised_s * (1 + 1e-9)


class Simulation:
    """One trace under one policy.

    Parameters
    ----------
    jobs : sequence of Job
        By the time of their submission.
    faults : sequence of Fault
        By time.
    stop_on_impossible : bool
        Whether a policy's impossible action is an error; else it is logged and left out.

    Attributes
    ----------
    forecasts : Forecasts
        What the policy was told, and what could not be.
    ended : list of JobResult
        Jobs that did, in that order.
    busy_s : float
        Device-seconds that somebody was on a device, until the last job ended; of a reservation
        nobody is.
    preempted : int
        How often a policy took a job's devices.
    stays : list of GangRun
        Of gangs, from a start to when they let go of their devices.
    partly, exceeded : int
        How often a job was granted a part of a device's memory, and took more than that.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        forecaster: Forecaster,
        ground_truth: GroundTruth,
        jobs: Sequence[Job],
        *,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        stop_on_impossible: bool = True,
    ) -> None:
        self._cluster, self._policy, self._ground_truth = cluster, policy, ground_truth
        self._jobs, self._faults = jobs, faults
        self._stop = stop_on_impossible
        self._rng = Random(seed)  # noqa: S311 - it draws no secrets
        self.forecasts = Forecasts(forecaster, cluster)
        self._progress, self._usage = Progress(), Usage()
        queue = Queue(_key(policy, self.forecasts))
        self.ledger = Ledger(cluster, queue, ageing_s=policy.needs.ageing_s)
        self.log = EventLog()
        self.ended: list[JobResult] = []
        self.stays: list[GangRun] = []
        self.busy_s = self._held_s = 0.0
        self.preempted = 0
        self.partly = self.exceeded = 0
        self._runs: dict[str, Run] = {}
        self._promised_s: dict[str, float] = {}  # of latency-sensitive jobs that were started
        self._heap: list[tuple[float, int, str]] = []  # when a run ends, its timing, its job
        self._wakes: list[float] = []
        self._arrived = 0
        self._decisions = 0
        self._now_s = 0.0

    def run(self, progress: Callable[[int], None] = lambda ended: None) -> None:
        """Simulate until every job has ended, or no pending job can ever start.

        ``progress`` is called from time to time with the number of jobs that have ended.
        """
        with _without_collector():
            self._run(progress)

    def _run(self, progress: Callable[[int], None]) -> None:
        arrivals, faults = deque(self._jobs), deque(self._faults)
        idle_wakes = told = 0
        while True:
            self._drop_outdated()
            now_s = self._next_s(arrivals, faults)
            if now_s == math.inf or not (arrivals or self._runs):
                break
            self._held_s += self.ledger.busy * (now_s - self._now_s)
            self._now_s = now_s
            if self._happen(arrivals, faults) or self.ledger.running:
                idle_wakes = 0
            else:
                idle_wakes += 1
            # Where nothing runs, only an arrival or a repair can change what wakes and decisions
            # have not: a policy that goes on and on does not put it off for ever.
            if idle_wakes > IDLE_WAKES:
                if not (arrivals or faults):
                    break
                self._wakes.clear()
                idle_wakes = 0
            if len(self.ended) >= told + _TOLD_EVERY:
                told = len(self.ended)
                progress(told)

    def _next_s(self, arrivals: deque[Job], faults: deque[Fault]) -> float:
        """Return when something happens next; infinity if nothing does."""
        return min(
            arrivals[0].submit_s if arrivals else math.inf,
            faults[0].at_s if faults else math.inf,
            self._heap[0][0] if self._heap else math.inf,
            self._wakes[0] if self._wakes else math.inf,
        )

    def _happen(self, arrivals: deque[Job], faults: deque[Fault]) -> bool:
        """Apply all that happens now, then decide; return whether a job arrived or a node failed.

        A repair counts as well.
        """
        now_s = self._now_s
        self._end_runs()
        before = len(faults)
        while faults and faults[0].at_s == now_s:
            self._fault(faults.popleft())
        came = []
        while arrivals and arrivals[0].submit_s == now_s:
            came.append(arrivals.popleft())
        if came:
            self._submit(came)
        while self._wakes and self._wakes[0] == now_s:
            heapq.heappop(self._wakes)
        for change in self.ledger.expire(now_s):
            self.log.entries.append((now_s, "expire", change.job.job_id, None))
        self._decide()
        return bool(came) or len(faults) < before

    # What happens ---------------------------------------------------------------------------

    def _submit(self, jobs: Sequence[Job]) -> None:
        self.forecasts.expect(jobs)
        respects_memory = self._policy.needs.respects_memory
        for job in jobs:
            too_small = self.forecasts.too_small(job) if respects_memory else ()
            why = self.ledger.submit(job, self._now_s, too_small)
            self.log.entries.append((self._now_s, "submit", job.job_id, job))
            if why:
                self.log.entries.append((self._now_s, "reject", job.job_id, why))
                self._over(job, Phase.REJECTED)
            else:
                self._runs[job.job_id] = Run(job)

    def _drop_outdated(self) -> None:
        """Ends that were foreseen by an earlier timing: nothing happens then, nor is decided."""
        heap, runs = self._heap, self._runs
        while heap:
            _, timing, job_id = heap[0]
            run = runs.get(job_id)
            if run is not None and run.timing == timing:
                return
            heapq.heappop(heap)

    def _end_runs(self) -> None:
        """Jobs that are done now, or run out of memory."""
        heap = self._heap
        if not heap or heap[0][0] != self._now_s:
            return
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
            run.here += 1.0 - run.done
            self._leave(run, change.before)
            self.log.entries.append((self._now_s, "finish", job_id, None))
            self._over(run.job, Phase.FINISHED)
        self._time_others(changes)

    def _over(self, job: Job, phase: Phase) -> None:
        self._runs.pop(job.job_id, None)
        self._progress.forget(job.job_id)
        self._usage.forget(job.job_id)
        self.forecasts.forget(job)
        status = self.ledger.status(job.job_id)
        first_s = status.first_start_s if status.starts else None
        promised_s = self._promised_s.pop(job.job_id, math.inf)
        solo_s = min(
            [
                self._ground_truth.solo_s(job, kind, job.gpus)
                for kind in self._cluster.kinds
                if not job.kinds or kind in job.kinds
            ],
            default=math.inf,
        )
        self.busy_s = self._held_s
        self.ended.append(JobResult(job, phase, first_s, self._now_s, status, solo_s, promised_s))

    def _leave(self, run: Run, status: JobStatus) -> None:
        """A job lets go of its devices; what a gang did there is counted."""
        if len(status.allocations) > 1:
            self.stays.append(GangRun(run.job, status.allocations, run.here))
        run.here = 0.0

    def _fault(self, fault: Fault) -> None:
        name = self._cluster.nodes[fault.node].name
        self.log.entries.append(
            (self._now_s, "repair" if fault.repaired else "fail", "", {"node": name})
        )
        if fault.repaired:
            self.ledger.repair(fault.node)
            return
        changes = self.ledger.fail(fault.node, self._now_s)
        for job, before, _ in changes:
            reserved = before.phase is Phase.RESERVED
            self.log.entries.append(
                (self._now_s, "expire" if reserved else "lost", job.job_id, None)
            )
            if not reserved:
                self._runs[job.job_id].lose(self._now_s)
                self._leave(self._runs[job.job_id], before)
                self._report(self._runs[job.job_id])
        self._time_others(changes)

    def _overflow(self, run: Run) -> Change:
        job = run.job
        run.lose(self._now_s)
        self._report(run)
        self.log.entries.append((self._now_s, "overflow", job.job_id, None))
        status = self.ledger.status(job.job_id)
        self._leave(run, status)
        if self._too_large(job, status) or status.overflows + 1 >= MOST_OVERFLOWS:
            change = self.ledger.end(job.job_id, Phase.FAILED, self._now_s)
            self._over(job, Phase.FAILED)
            return change
        return self.ledger.give_up(job.job_id, self._now_s, overflow=True)

    def _too_large(self, job: Job, status: JobStatus) -> bool:
        """Whether a job that ran out of memory does so wherever it may go.

        If nobody was beside it, it is not put on devices as small as these again.
        """
        if any(
            self.ledger.on(allocation.device) != (job.job_id,) for allocation in status.allocations
        ):
            return False
        kinds = {self._cluster.kind_of(allocation.device) for allocation in status.allocations}
        smallest = min(kinds, key=lambda kind: (self._cluster.memory_of[kind], kind))
        return bool(self.ledger.exclude(job.job_id, smallest))

    # What is decided ------------------------------------------------------------------------

    def _decide(self) -> None:
        state = State(self.ledger, self._now_s, self._progress, self._usage)
        self._decisions += 1
        decided = (self._now_s, "decide", "", self._decisions)
        try:
            actions = self._policy.decide(state, self.forecasts, self._rng)
            if not actions:
                return
            changes = self.ledger.apply(actions, self._now_s)
        except ImpossibleActionError as error:
            # The reason alone: what was wanted may be anything, also what no line can hold.
            self.log.entries += [decided, (self._now_s, "refused", "", {"why": str(error)})]
            if self._stop:
                raise
            return
        self.log.entries.append(decided)
        for action in actions:
            self._note(action)
        self._time(changes)

    def _note(self, action: Action) -> None:
        if isinstance(action, Wake):
            self.log.entries.append((self._now_s, "wake", "", action.at_s))
            if self._now_s < action.at_s < math.inf:
                heapq.heappush(self._wakes, action.at_s)
            return
        self.preempted += isinstance(action, Preempt)
        job_id, *rest = action
        more: object = rest[0] if rest else None
        if isinstance(action, Reserve):
            heapq.heappush(self._wakes, action.until_s)
            more = {"allocations": action.allocations, "until_s": action.until_s}
        self.log.entries.append((self._now_s, _WHAT[type(action)], job_id, more))

    # How fast jobs run ----------------------------------------------------------------------

    def _time(self, changes: Sequence[Change]) -> None:
        """Time the jobs that a decision changed, and jobs co-located with them."""
        began: list[tuple[Run, JobStatus]] = []
        let_go = {change.job.job_id for change in changes if change.after.phase in WAITING}
        for job, before, after in _net(changes):
            if after.phase is Phase.REJECTED:
                self._over(job, Phase.REJECTED)
                continue
            run = self._runs[job.job_id]
            moved = job.job_id in let_go or _moved(before, after)
            if before.phase in WAITING:
                pass  # it stood still
            elif moved:
                run.save(self._now_s)
                self._leave(run, before)
            else:
                run.hold(self._now_s)
            self._report(run)
            if after.phase is not Phase.RUNNING:
                continue
            self._begin(run, after.allocations[0], moved=moved)
            began.append((run, after))
        for run, status in began:
            self._set_pace(run, status)
        self._time_others(changes)

    def _begin(self, run: Run, first: Allocation, *, moved: bool) -> None:
        """Let a job run on; with ``moved`` from now on devices that it did not have."""
        job = run.job
        if job.latency_sensitive and job.job_id not in self._promised_s:
            kind = self._cluster.kind_of(first.device)
            self._promised_s[job.job_id] = self.forecasts.prediction(job, kind).promised_s
        if moved:
            if not run.arrival:
                self._count_part(job, first)
            self._arrived += 1
            run.arrival = self._arrived
        run.begin(self._now_s)

    def _time_others(self, changes: Iterable[Change]) -> None:
        """Time the jobs that share a device with a job that came or went."""
        if not self.ledger.was_shared:
            return
        changed = {change.job.job_id for change in changes}
        others: dict[str, None] = {}
        for _, before, after in changes:
            for allocation in (*before.allocations, *after.allocations):
                there = self.ledger.on(allocation.device)
                others.update((job_id, None) for job_id in there if job_id not in changed)
        for job_id in others:
            status = self.ledger.status(job_id)
            if status.phase is Phase.RUNNING:
                run = self._runs[job_id]
                run.advance(self._now_s)
                self._set_pace(run, status)

    def _count_part(self, job: Job, allocation: Allocation) -> None:
        """Whether a job takes more than the part of a device's memory that it is granted."""
        whole = self._cluster.whole[allocation.device]
        if allocation.memory_bytes < whole.memory_bytes:
            taken = self._ground_truth.memory_bytes(job, self._cluster.kind_of(allocation.device))
            self.partly += 1
            self.exceeded += taken > allocation.memory_bytes

    def _set_pace(self, run: Run, status: JobStatus) -> None:
        run.pace_s = self._pace_s(run.job, status)
        run.timing += 1
        if not self._overflows(run, status):
            run.overflows_at = math.inf
        elif run.overflows_at == math.inf:
            run.overflows_at = self._now_s + OVERFLOW_S
        end_s = max(run.since_s + (1.0 - run.done) * run.pace_s, self._now_s)
        heapq.heappush(self._heap, (min(end_s, run.overflows_at), run.timing, run.job.job_id))
        self._report(run, status)

    def _report(self, run: Run, status: JobStatus | None = None) -> None:
        if run.job.latency_sensitive:
            busy_milli = 0.0 if status is None else self._busy_milli(run, status)
            self._usage.report(run.job.job_id, self._now_s, busy_milli)
        since_s = self._now_s if run.pace_s == math.inf else run.since_s
        self._progress.report(run.job.job_id, run.done, since_s, _per_s(run.pace_s))

    def _busy_milli(self, run: Run, status: JobStatus) -> float:
        """Thousandths of its first device that a job keeps busy: the fewer, the slower it runs."""
        kind = self._cluster.kind_of(status.allocations[0].device)
        solo_s = self._ground_truth.solo_s(run.job, kind, len(status.allocations))
        part = min(1.0, solo_s / run.pace_s) if run.pace_s > 0 else 1.0
        return part * self._ground_truth.compute_milli(run.job, kind)

    def _pace_s(self, job: Job, status: JobStatus) -> float:
        """Seconds that all of a job takes so: a gang goes as fast as its slowest member."""
        slowest, seen = 0.0, set()
        members, node_of = len(status.allocations), self._cluster.node_of
        spread = (
            members > 1
            and len({node_of[allocation.device] for allocation in status.allocations}) > 1
        )
        for allocation in status.allocations:
            kind = self._cluster.kind_of(allocation.device)
            there = self.ledger.on(allocation.device)
            if len(there) == 1 and allocation.compute_milli == FULL_DEVICE_MILLI:
                if kind in seen:
                    continue
                seen.add(kind)
                slowdown = 1.0
            else:
                slowdown = self._slowdown(job, kind, allocation.device, there)
            solo_s = self._ground_truth.solo_s(job, kind, members)
            if spread:
                solo_s *= self._ground_truth.spread(job, kind, members)
            slowest = max(slowest, solo_s * slowdown)
        interval_s, cost_s = job.checkpointing.interval_s, job.checkpointing.cost_s
        return slowest if interval_s == math.inf else slowest * (1 + cost_s / interval_s)

    def _slowdown(self, job: Job, kind: str, device: int, there: Sequence[str]) -> float:
        members = []
        for job_id in there:
            status = self.ledger.status(job_id)
            if status.phase is Phase.RUNNING:
                allocation = next(g for g in status.allocations if g.device == device)
                members.append((self._runs[job_id].job, allocation.compute_milli))
        told = self._ground_truth.slowdowns(kind, members)
        return next(s for (who, _), s in zip(members, told, strict=True) if who is job)

    def _overflows(self, run: Run, status: JobStatus) -> bool:
        """Whether any of its devices has too little memory left by those who came before it."""
        fits: set[str] = set()  # kinds on which it fits alone
        for allocation in status.allocations:
            node = self._cluster.nodes[self._cluster.node_of[allocation.device]]
            there = self.ledger.on(allocation.device)
            if len(there) == 1 and node.kind in fits:
                continue
            runs = (
                self._runs[job_id]
                for job_id in there
                if self.ledger.status(job_id).phase is not Phase.RESERVED
            )
            before = [one.job for one in runs if one.arrival <= run.arrival]
            if not self._ground_truth.fits(node.kind, node.memory_bytes, before):
                return True
            if len(there) == 1:
                fits.add(node.kind)
        return False


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing here makes cycles, and to look for some among all jobs takes a sixth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _key(policy: Policy, forecasts: Forecasts) -> Callable[[Job, JobStatus], Key]:
    """The order of a policy's queue: of policy and forecasts alone, for policies see the queue."""

    def key(job: Job, status: JobStatus) -> Key:
        return policy.key(job, status, forecasts)

    return key


def _per_s(pace_s: float) -> float:
    return 1.0 / pace_s if pace_s > 0 else 0.0


def _moved(before: JobStatus, after: JobStatus) -> bool:
    """Whether a job is on other devices, or none: other shares of the same it has at once."""
    return before.phase in WAITING or {allocation.device for allocation in before.allocations} != {
        allocation.device for allocation in after.allocations
    }


def _net(changes: Collection[Change]) -> Iterable[Change]:
    """Of each job that changed in a batch, perhaps several times, how it stood and stands."""
    if len(changes) == 1:
        return changes
    net: dict[str, Change] = {}
    for change in changes:
        before = net.get(change.job.job_id, change).before
        net[change.job.job_id] = Change(change.job, before, change.after)
    return net.values()
