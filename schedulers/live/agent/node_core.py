"""What an agent decides about its node: which device, how much of it, who is paused or ended.

Pure: it is told the controller's orders, what was seen of processes, and the time; it says what is
wanted of each task. Rules are those of :mod:`presage.schedulers.policies.sharing`, on a ledger of
this node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import Action, Pause, Preempt, Resize, Resume, Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.compute_usage import Usage
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Key, Queue
from presage.schedulers.core.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.live.agent.controller_forecasts import ToldJobs
from presage.schedulers.live.agent.node_task import LEAST_MARKS, PACE_S, Name, NodeTask, Seen, Step
from presage.schedulers.live.protocol.node_devices import cluster_of
from presage.schedulers.live.protocol.wire import (
    read_allocations,
    read_job,
    read_told,
    write_allocations,
)
from presage.schedulers.policies.sharing.policy import Sharing
from presage.schedulers.policies.sharing.slo import rest_s, violated
from presage.schedulers.v1 import cluster_pb2 as pb

PATIENCE_S = 5.0  # for room that was there when the controller chose this node
BY_TOLD_S = 2.0  # for what the second predictor says of it; then the controller's words count
_SURE = 1.02  # more than a device's memory by less is how it is counted
_PHASES = {Step.WAITING: pb.TASK_WAITING, Step.GRANTED: pb.TASK_WAITING, Step.ENDED: pb.TASK_ENDED}


class NodeCore:
    """A node's tasks, from the orders that bring them to when the controller lets them go.

    Parameters
    ----------
    devices : sequence of (str, int)
        Kind and bytes of memory of each.
    forecasts : callable
        Fresh forecasts, for a cluster at a time.

    told : ToldJobs
        What the controller foretells of each job; kept up here.

    Attributes
    ----------
    tasks : dict of (str, int) to NodeTask
    """

    def __init__(
        self,
        node: str,
        devices: Sequence[tuple[str, int]],
        forecasts: Callable[[Cluster, float], Forecasts],
        told: ToldJobs,
    ) -> None:
        self.cluster = cluster_of([(node, devices)])
        self._forecasts, self.told = forecasts, told
        self.tasks: dict[Name, NodeTask] = {}
        self._policy: Sharing | None = None
        self._settings: pb.Sharing | None = None
        self._usage, self._progress = Usage(), Progress()
        self._ledger = Ledger(self.cluster, Queue(self._key))
        self._attempts: dict[str, int] = {}  # of the jobs in the ledger
        self._looked_s = 0.0
        self._now_s = 0.0

    # What it is told ------------------------------------------------------------------------

    def obey(self, orders: pb.NodeOrders, now_s: float) -> list[NodeTask]:
        """Take all that the node is to have; the tasks that are forgotten with that."""
        self._set_policy(orders)
        wanted = {(one.job.job_id, one.attempt): one for one in orders.tasks}
        for name, order in wanted.items():
            if name not in self.tasks:
                self._add(order, now_s)
            task = self.tasks[name]
            task.ordered = True
            if order.end:
                self._end(task, order.end, checkpoint=not order.discard)
        for name, task in self.tasks.items():
            if name not in wanted:
                task.ordered = False
                self._end(task, "the controller does not know it any more", checkpoint=True)
        forgotten = []
        for one in orders.forget:
            known = self.tasks.get((one.job_id, one.attempt))
            if known is not None and known.step is Step.ENDED and not known.ordered:
                forgotten.append(known)
                self._forget(known)
        return forgotten

    def restore(
        self,
        order: pb.TaskOrder,
        allocations: tuple[Allocation, ...],
        now_s: float,
        *,
        end: str,
        paused: bool,
        ran_s: float,
    ) -> None:
        """A task of which an earlier agent has made the folder; of a job's attempts in order."""
        task = self._add(order, now_s)
        fits = task.step is not Step.ENDED
        task.allocations, task.step, task.seen = allocations, Step.STARTED, None
        task.end, task.paused, task.in_part = end, paused, True
        if not fits or any(allocation.device >= self.cluster.devices for allocation in allocations):
            self._end(task, "the node has not its devices any more", checkpoint=True)
            task.allocations = ()
        elif end:
            self._leave(task)
        else:
            self._hold(task, Phase.PAUSED if paused else Phase.RUNNING, now_s, ran_s)

    def made(self, name: Name) -> None:
        """A task's folder is there: its process may be at any moment."""
        task = self.tasks[name]
        task.step, task.why = Step.STARTED, ""

    def see(self, name: Name, seen: Seen, now_s: float) -> None:
        """What was seen of a task's process."""
        task = self.tasks[name]
        self._note(task, seen)
        task.seen = seen
        if seen.exit is not None:
            task.step = Step.ENDED
            self._leave(task)
            return
        task.step = Step.STARTED
        job_id = name[0]
        if self._current(job_id) is task and not task.begun and seen.ran_s > 0:
            task.begun = True
            if not task.order.elapsed_s:
                self._restand(job_id, first_start_s=now_s - seen.ran_s)
        done = self._done(task, seen)
        self._progress.report(job_id, done, now_s, task.per_s, seen.saved, task.most_per_s)
        # What it does before its first iteration is no part of what was foretold of its compute.
        # A paused task counts always: its mean has to fall, or it would stay paused for good.
        counts = seen.done is None or task.last != task.first or task.paused
        if seen.usage_milli is not None and counts:
            self._usage.report(job_id, now_s, seen.usage_milli)

    # What it decides ------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Place who waits, and adjust who runs."""
        self._now_s = now_s
        self._end_overflows()
        if self._policy is None:
            self._as_bound(now_s)
        else:
            self._by_policy(self._policy, now_s)
        self._hand_back(now_s)
        self._note_occupancy()

    def ready(self) -> Iterator[NodeTask]:
        """Tasks whose processes are to be started: they have devices that nobody is leaving."""
        leaving = {
            allocation.device
            for task in self.tasks.values()
            if task.step is Step.STARTED and task.end
            for allocation in task.allocations
        }
        for task in self.tasks.values():
            clear = leaving.isdisjoint(allocation.device for allocation in task.allocations)
            if task.step is Step.GRANTED and clear and not task.end:
                yield task

    def report(self) -> list[pb.Task]:
        """All that the node has."""
        return [self._task(task) for task in self.tasks.values()]

    # ----------------------------------------------------------------------------------------

    def _set_policy(self, orders: pb.NodeOrders) -> None:
        given = orders.sharing if orders.HasField("sharing") else None
        if given == self._settings:
            return
        self._settings = given
        self._policy = None
        for task in self.tasks.values():  # another one judges by itself, or nobody does
            task.late, task.rest_s = False, None
        if given is not None:
            self._policy = Sharing(
                given.step_milli, given.least_milli, given.check_s, given.overcommit, home_s=0.0,
                reserve=given.reserve,
            ).agent_policy()  # fmt: skip

    def _key(self, job: Job, status: JobStatus) -> Key:
        return (not job.latency_sensitive, -job.priority, job.submit_s)

    def _add(self, order: pb.TaskOrder, now_s: float) -> NodeTask:
        submitted = read_job(order.job, now_s, "job")
        task = NodeTask(order, submitted, now_s)
        earlier = [one for one in self.tasks.values() if one.name[0] == task.name[0]]
        for one in earlier:  # of an attempt before: it is over, or is to be
            self._leave(one)
            self._end(one, "another attempt of its job is here", checkpoint=False)
        self.tasks[task.name] = task
        job = submitted.job
        self.told.by_job[job.job_id] = read_told(order.told)
        self._forecasts(self.cluster, now_s).forget(job)
        first_s = now_s - order.elapsed_s if order.elapsed_s > 0 else math.inf
        status = JobStatus(
            Phase.PENDING,
            now_s,
            starts=order.attempt - 1,
            overflows=int(order.alone),
            first_start_s=first_s,
        )
        self._attempts[job.job_id] = order.attempt
        if why := self._ledger.adopt(job, status):
            task.step, task.why = Step.ENDED, why
            task.seen = Seen(0.0, None, order.done, None, 0, 0, pb.Exit(how=why, lost=True))
            self._leave(task)
        return task

    def _end(self, task: NodeTask, why: str, *, checkpoint: bool) -> None:
        if task.step is Step.ENDED or (task.end and (checkpoint or not task.checkpoint)):
            return
        task.end, task.checkpoint, task.why = why, checkpoint, why
        self._leave(task)
        if task.step in (Step.WAITING, Step.GRANTED):
            task.step = Step.ENDED
            task.seen = Seen(
                0.0, None, task.order.done, None, 0, 0, pb.Exit(asked=True, how="never started")
            )

    def _leave(self, task: NodeTask) -> None:
        """Nothing is decided about a task any more."""
        job_id, attempt = task.name
        if self._attempts.get(job_id) == attempt:  # not one that came after it
            self._ledger.forget(job_id)
            del self._attempts[job_id]

    def _forget(self, task: NodeTask) -> None:
        self._leave(task)
        del self.tasks[task.name]
        job_id = task.name[0]
        if all(name[0] != job_id for name in self.tasks):
            self.told.forget(job_id)
            self._progress.forget(job_id)
            self._usage.forget(job_id)

    def _hold(self, task: NodeTask, phase: Phase, now_s: float, ran_s: float) -> None:
        """A task that had devices before has them in the ledger, if it can."""
        job_id = task.name[0]
        status = self._ledger.status(job_id)
        job = self._ledger.jobs[job_id]
        self._ledger.forget(job_id)
        first_s = min(status.first_start_s, now_s) - ran_s
        stands = status._replace(
            phase=phase,
            allocations=task.allocations,
            first_start_s=first_s,
            attained_s=ran_s * len(task.allocations),
        )
        try:
            self._ledger.adopt(job, stands)
        except ImpossibleActionError:  # it runs, though nobody knows how: it may end in peace
            task.why = "there is no room for what it was given"
            del self._attempts[job_id]

    def _restand(self, job_id: str, **changes: Any) -> None:
        """Let a job that is in the ledger stand otherwise, with what it has."""
        if job_id in self._ledger.jobs:
            job, status = self._ledger.jobs[job_id], self._ledger.status(job_id)
            self._ledger.forget(job_id)
            self._ledger.adopt(job, status._replace(**changes))

    def _note(self, task: NodeTask, seen: Seen) -> None:
        """Add what was seen of a task to what will be told of it."""
        more_s = max(0.0, seen.ran_s - task.runtime_s)
        task.busy_s += more_s * (seen.usage_milli or 0.0) / FULL_DEVICE_MILLI
        if seen.done and (task.last is None or seen.done > task.last[1]):
            task.last = seen.ran_s, seen.done
            task.first = task.first or task.last
            task.marks.append(task.last)
            while len(task.marks) > LEAST_MARKS and task.marks[1][0] < seen.ran_s - PACE_S:
                task.marks.popleft()
        devices = {allocation.device for allocation in task.allocations}
        for name, other in self.tasks.items():
            there = other.step is Step.STARTED and other is not task
            if there and not devices.isdisjoint(
                allocation.device for allocation in other.allocations
            ):
                task.beside[name] = task.beside.get(name, 0.0) + more_s

    def _note_occupancy(self) -> None:
        """Tasks that have another share, or other company, go at another pace from now on."""
        started = [task for task in self.tasks.values() if task.step is Step.STARTED]
        for task in self.tasks.values():
            devices = {allocation.device for allocation in task.allocations}
            occupancy = [(task.name, task.allocations, task.paused)] + [
                (other.name, other.allocations, other.paused)
                for other in started
                if other is not task and not devices.isdisjoint(g.device for g in other.allocations)
            ]
            if task.occupancy != occupancy:
                task.begin_anew(occupancy)

    def _done(self, task: NodeTask, seen: Seen) -> float:
        """Part of a job that is done; of one that does not say, as was foretold."""
        if seen.done is not None:
            return seen.done
        kind = self.cluster.kind_of(task.allocations[0].device) if task.allocations else ""
        prediction = self.told.by_job[task.name[0]].get(kind)
        if prediction is None or not 0 < prediction.runtime_s < math.inf:
            return task.order.done
        return min(1.0, task.order.done + seen.ran_s / prediction.runtime_s)

    def _at_look(self, now_s: float) -> float:
        """The time to decide at: a look at quality of service, if one is due, else now."""
        assert self._policy is not None
        check_s = self._policy.settings.check_s
        last = math.floor(now_s / check_s) * check_s
        if last > self._looked_s:
            self._looked_s = last
            return last
        return now_s

    def _applied(self, action: Action, now_s: float) -> bool:
        try:
            self._ledger.apply([action], now_s)
        except ImpossibleActionError:
            return False
        return True

    def _carry_out(self, action: Action) -> None:
        task = self._current(getattr(action, "job_id", ""))
        if task is None:
            return
        match action:
            case Start():
                task.allocations, task.step = action.allocations, Step.GRANTED
                task.why = ""
                if not task.order.elapsed_s:  # until there is a process, nobody can be late
                    self._restand(action.job_id, first_start_s=math.inf)
            case Resize():
                before, task.allocations, task.steady = task.allocations, action.allocations, False
                more = action.allocations[0].compute_milli - before[0].compute_milli
                task.why = f"{'given' if more > 0 else 'left with'} {_share(action.allocations)}"
            case Pause():
                task.steady, task.paused = False, True
                task.why = "paused: busier than foretold, and in time"
            case Resume():
                task.paused, task.why = False, ""
            case Preempt():
                self._end(task, "too little is left beside latency-sensitive jobs", checkpoint=True)

    def _current(self, job_id: str) -> NodeTask | None:
        return next(
            (t for n, t in self.tasks.items() if n[0] == job_id and not t.end
             and t.step is not Step.ENDED),
            None,
        )  # fmt: skip

    def _as_bound(self, now_s: float) -> None:
        """Give tasks the very devices that the controller chose, as they come free.

        What an earlier policy gave otherwise, or paused, comes back to that, but to no other
        device: a process stays where it is.
        """
        for action in self._to_bounds():
            if self._applied(action, now_s):
                self._carry_out(action)
        for task in self.tasks.values():
            if task.step is Step.WAITING and not task.end:
                allocations = read_allocations(task.order.allocations)
                if self._applied(Start(task.name[0], allocations), now_s):
                    task.allocations, task.step = allocations, Step.GRANTED

    def _to_bounds(self) -> list[Action]:
        """Those first that make room."""
        less, resumed, more = list[Action](), list[Action](), list[Action]()
        for (job_id, _), task in self.tasks.items():
            if task.end or task.step not in (Step.GRANTED, Step.STARTED):
                continue
            if task.paused:
                resumed.append(Resume(job_id))
                continue
            bound = _at_devices(read_allocations(task.order.allocations), task.allocations)
            if bound != task.allocations:
                falls = bound[0].compute_milli < task.allocations[0].compute_milli
                (less if falls else more).append(Resize(job_id, bound))
        return [*less, *resumed, *more]

    def _judge(self, forecasts: Forecasts, now_s: float) -> None:
        """Note what tasks still take, and who will not be done as promised."""
        for task in self.tasks.values():
            job = task.submitted.job
            task.rest_s = None
            if task.step is not Step.STARTED or task.end or job.job_id not in self._ledger.jobs:
                continue
            prediction = forecasts.prediction(job, self.cluster.kind_of(task.allocations[0].device))
            elapsed_s = max(0.0, now_s - self._ledger.status(job.job_id).first_start_s)
            done = self._progress.at(job.job_id, now_s)
            pace_s = self._progress.pace_s(job.job_id)
            task.rest_s = rest_s(done, elapsed_s, prediction, pace_s)
            if job.latency_sensitive:
                task.late = violated(elapsed_s, done, prediction, pace_s)

    def _by_policy(self, policy: Sharing, now_s: float) -> None:
        state = State(self._ledger, self._at_look(now_s), self._progress, self._usage)
        forecasts = self._forecasts(self.cluster, now_s)
        # At once: where the second predictor is away, each question is waited for.
        forecasts.expect(job for job in self._ledger.jobs.values() if not forecasts.knows(job))
        actions = policy.decide(state, forecasts, Random(0))  # noqa: S311
        try:
            self._ledger.apply(actions, now_s)
        except ImpossibleActionError:  # of one; the others need not suffer
            actions = [action for action in actions if self._applied(action, now_s)]
        for action in actions:
            self._carry_out(action)
        self._judge(forecasts, now_s)

    def _hand_back(self, now_s: float) -> None:
        """Let the controller choose again for who finds no room: it was given away meanwhile."""
        for task in tuple(self.tasks.values()):
            waits_s = now_s - task.came_s if task.step is Step.WAITING else 0.0
            if waits_s > PATIENCE_S:
                self._end(task, "there was no room left for it on its node", checkpoint=False)
            elif waits_s > BY_TOLD_S and task.name[0] not in self.told.binding:
                # Or it would come back here for as long as the two predictors disagree.
                self.told.binding.add(task.name[0])
                self._forecasts(self.cluster, now_s).forget(task.submitted.job)

    def hand_back(self, name: Name, why: str) -> None:
        """Let the controller choose again for a task of which no process can be made here."""
        self._end(self.tasks[name], why, checkpoint=False)

    def unmade(self, name: Name, why: str) -> None:
        """A task's folder is gone, and its process never was: the controller chooses again."""
        task = self.tasks[name]
        why, task.end, task.step = task.end or why, "", Step.GRANTED
        self._end(task, why, checkpoint=False)

    def _end_overflows(self) -> None:
        """Who came last to a device whose memory is exceeded has run out of it."""
        for device in range(self.cluster.devices):
            there = [
                task for task in self.tasks.values()
                if task.step is Step.STARTED
                and any(allocation.device == device for allocation in task.allocations)
            ]  # fmt: skip
            # What a gang has taken is of all its devices, and about the same of each.
            taken = sum(
                task.seen.memory_bytes / len(task.allocations)
                for task in there
                if task.seen is not None
            )
            if taken > _SURE * self.cluster.whole[device].memory_bytes:
                last = min(there, key=lambda task: task.runtime_s)
                self._end(last, OVERFLOW, checkpoint=False)

    def _task(self, task: NodeTask) -> pb.Task:
        seen = task.seen
        phase = _PHASES.get(task.step, pb.TASK_RUNNING)
        if task.step is Step.STARTED and (task.end or task.paused):
            phase = pb.TASK_ENDING if task.end else pb.TASK_PAUSED
        row = pb.Task(
            job_id=task.name[0],
            attempt=task.order.attempt,
            phase=phase,
            allocations=write_allocations(task.allocations),
            late=task.late,
            why=task.why,
            saved=task.order.done,
        )
        if seen is not None:
            row.done = self._done(task, seen)
            row.done_guessed = seen.done is None and row.done > 0
            row.saved = max(row.saved, seen.saved)
            row.ran_s = seen.ran_s
            if task.rest_s is not None and seen.exit is None:
                row.rest_s = task.rest_s
            row.memory_bytes, row.peak_memory_bytes = seen.memory_bytes, seen.peak_memory_bytes
            row.usage_milli = self._usage.at(task.name[0], self._now_s)
            if seen.exit is not None:
                row.exit.CopyFrom(seen.exit)
                if task.end == OVERFLOW:
                    row.exit.out_of_memory, row.exit.asked = True, False
        return row


OVERFLOW = "the device's memory was exceeded, and it came last"


def _at_devices(
    bound: tuple[Allocation, ...], had: tuple[Allocation, ...]
) -> tuple[Allocation, ...]:
    """What was chosen, on the devices that a task has; what it has, if those are not as many."""
    if len(bound) != len(had):
        return had
    return tuple(one._replace(device=has.device) for one, has in zip(bound, had, strict=True))


def _share(allocations: Sequence[Allocation]) -> str:
    return f"{allocations[0].compute_milli * 100 / FULL_DEVICE_MILLI:g} % of the device"
