"""A node's agent: it brings to the node what the controller wants there, and says what there is.

It can be killed at any moment: what it knows is in its state folder, and its tasks run on. Each
acknowledged report extends the lease that they run under.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from google.protobuf.json_format import ParseDict, ParseError

from presage.errors import InvalidJobError, TaskFolderError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.agent_state import agent_id_of, lock_state
from presage.schedulers.live.agent.controller_forecasts import (
    SecondForecasts,
    ToldForecasts,
    ToldJobs,
)
from presage.schedulers.live.agent.isolation.task_usage import Meter, meter_of
from presage.schedulers.live.agent.lease import boottime_s
from presage.schedulers.live.agent.lease_renewal import Renewal
from presage.schedulers.live.agent.node_core import NodeCore
from presage.schedulers.live.agent.node_task import Name, NodeTask, Seen, Step
from presage.schedulers.live.agent.observation import observe
from presage.schedulers.live.agent.outcome_outbox import Outbox, outcome_of
from presage.schedulers.live.agent.own_cluster import OwnCluster
from presage.schedulers.live.agent.task_specs import spec_of, wanted_of
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.kept_logs import keep_log, log_of
from presage.schedulers.live.agent.tasks.leftovers import sweep
from presage.schedulers.live.agent.tasks.log_file import read_log
from presage.schedulers.live.agent.tasks.overdue import end_overdue
from presage.schedulers.live.agent.tasks.task import End, Wanted
from presage.schedulers.live.agent.tasks.task_folder import TASKS, TaskFolder
from presage.schedulers.live.agent.tasks.task_process import (
    Task,
    TaskState,
    adopt,
    cannot_launch,
    cannot_make,
    create,
    launch,
    no_capacity,
    remove,
    remove_leftovers,
    state_of,
    want,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log
from presage.serving.v1 import prediction_pb2 as pb_outcome

LOOK_S = 0.5  # from one look at the tasks to the next
OWN_FAULT_S = 30.0  # that others could be made and one could not: then it is not the node's
NEEDED_S = 60.0  # that a node is given nothing for a task that found too little room
PROBE_S = 10.0  # until it is tried again whether there is room for tasks
RUNNING_S = 1.0  # from one report to the next at most, while a task runs
_OF_A_LEASE = 4  # reports are sent within each, so that some may be lost
_STALLED_S = 30.0  # that one look at the tasks may take: the launch of a shim has 20
_TIDY_S = 10.0  # from one removal of what is left of tasks to the next
_TIDYING_S = 5.0  # that it takes at most


class Agent:
    """The agent of a node, in the running event loop.

    Parameters
    ----------
    second : callable or None
        A forecaster of its own, which remembers nothing yet.
    outbox : Outbox or None
        For how its tasks ended; None where nobody is told.

    Raises
    ------
    ConfigError
        Another agent has the state folder, or it cannot be written.
    """

    def __init__(
        self,
        options: AgentOptions,
        second: Callable[[], Forecaster] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._options = options
        self._lock = lock_state(options.state)
        self._agent_id = agent_id_of(options.state)
        devices = [(slot.kind, slot.memory_bytes) for slot in options.slots]
        told = ToldJobs()
        first = ToldForecasts(told)
        forecasts = PredictionCache(
            lambda: SecondForecasts(told, second()) if second else first, fallback=first
        )
        self.core = NodeCore(options.node, devices, forecasts.get, told)
        self._forecasts, self._missing = forecasts, ""  # and what was last said to be wrong of them
        self._processes: dict[Name, Task] = {}
        self._meters: dict[Name, Meter] = {}
        self._woken, self._changed = asyncio.Event(), asyncio.Event()
        self._orders: tuple[int, pb.NodeOrders] | None = None  # not yet obeyed
        self._lease = Renewal(options.state)
        self._looked_s = boottime_s()  # when all tasks were last checked
        self._stalled = False
        self._cluster = OwnCluster(options.state)
        self._refused: pb.NodeOrders | None = None  # of another cluster; those that follow say less
        self._said: tuple[int, list[pb.Task]] = (0, [])  # after orders of a version, what there is
        self._problem = ""  # why no task can be made here
        self._probe_s = 0.0  # when to try again
        self._needed_bytes = 0  # on the disk, by a task that found no room a while ago
        self._needed_s = 0.0  # when it did
        self._number = 0
        self._sent_s: dict[int, float] = {}  # when a report was, by its number
        self._lease_s = 0.0
        self.heard = 0  # orders, of whatever content
        self.outbox = outbox
        self.logs: asyncio.Queue[pb.LogWanted] = asyncio.Queue()

    def begin(self) -> None:
        """Find the tasks of an agent before this one; what nobody answers for is ended."""
        found = adopt(self._options.state)
        # By attempt, as they came: the last one of a job is the one that may be wanted.
        for task in sorted(found.tasks, key=lambda task: task.spec.attempt):
            try:
                self._adopt(task)
            except (KeyError, TypeError, ValueError, ParseError, InvalidJobError) as error:
                self._give_up(task.folder, str(error))
        for folder in found.damaged:
            self._give_up(folder, "its spec.json cannot be read")
        sweep(self._options.state)
        self._step()

    async def run(self) -> None:
        """Look at the tasks, decide, and do what follows, again and again."""
        tidying = asyncio.create_task(self._tidy())
        try:
            await self._look()
        finally:
            tidying.cancel()

    async def _look(self) -> None:
        while True:
            self._woken.clear()
            before = _news(*self._said), self._problem
            await asyncio.to_thread(self._step)
            if (_news(*self._said), self._problem) != before:
                self._changed.set()
            try:
                await asyncio.wait_for(self._woken.wait(), LOOK_S)
            except TimeoutError:
                continue

    async def _tidy(self) -> None:
        """Remove what is left of tasks that are over, however much that is."""
        while True:
            await asyncio.to_thread(remove_leftovers, self._options.state, _TIDYING_S)
            await asyncio.sleep(_TIDY_S)

    def hear(self, orders: pb.NodeOrders) -> None:
        """What the controller says; it is obeyed with the next look.

        Nothing of it is where it is another cluster's, and tasks of this one's are not over.
        """
        self.heard += 1
        full = self._refused if orders.unchanged else orders
        if full is not None and not self._obeys(full):
            self._refused = full
            return
        self._refused = None
        if full is not None:
            self._orders = self._lease.order(), full
            self._woken.set()
        # Also of orders that answer nothing yet.
        self._lease_s = (full or orders).lease_s or self._lease_s
        sent_s = self._sent_s.get(orders.answers)
        if sent_s is not None:
            self._sent_s = {n: s for n, s in self._sent_s.items() if n > orders.answers}
            # Tasks that were not checked for so long run no longer than their lease.
            self._lease.until(min(sent_s, self._looked_s + _STALLED_S) + self._lease_s)
        for wanted in orders.logs:
            self.logs.put_nowait(wanted)

    async def reports(self) -> AsyncIterator[pb.NodeReport]:
        """What to say on a new stream: at once, after each change, and with each heartbeat.

        That is each second while a task runs: what it does and uses is no change. While a check of
        the tasks does not end, the problem says so for as long as their lease is; then there is
        nothing to say, and the controller takes the node for lost.
        """
        self._sent_s.clear()
        while True:
            if self.has_stalled() and boottime_s() > self._lease.until_s:
                await asyncio.sleep(LOOK_S)
                continue
            self._changed.clear()
            self._number += 1
            self._sent_s[self._number] = boottime_s()
            version, tasks = self._said
            yield pb.NodeReport(
                node=self._options.node,
                agent_id=self._agent_id,
                number=self._number,
                devices=[
                    pb.Device(kind=slot.kind, memory_bytes=slot.memory_bytes)
                    for slot in self._options.slots
                ],
                tasks=tasks,
                orders=version,
                problem=self._stall or self._problem,
                cluster_id=self._cluster.cluster_id if self._has_tasks else "",
            )
            try:
                await asyncio.wait_for(self._changed.wait(), self._report_s)
            except TimeoutError:
                continue

    @property
    def heartbeat_s(self) -> float:
        """From one report to the next at most, and from one try to reach the controller."""
        lease_s = self._lease_s or _OF_A_LEASE * self._options.heartbeat_s
        return min(self._options.heartbeat_s, lease_s / _OF_A_LEASE)

    def log_part(self, wanted: pb.LogWanted, most_bytes: int) -> pb.LogPart:
        """Return a part of a task's log, as ``tasks.log_file.read_log`` does."""
        name = wanted.task.job_id, wanted.task.attempt
        task = self._processes.get(name)
        kept = log_of(self._options.state, task_name(*name))
        ended = name not in self.core.tasks or (
            task is not None and state_of(task.folder) not in (TaskState.NEW, TaskState.RUNNING)
        )
        part = pb.LogPart(request_id=wanted.request_id, offset=max(0, wanted.offset), ended=ended)
        for log_file in (kept,) if task is None else (task.folder.log, kept):
            try:
                read = read_log(log_file, wanted.offset, most_bytes)
                part.offset, part.content = read.offset, read.content
            except (OSError, ValueError):  # not there, or of a size that no message can say
                continue
            part.ended = ended and read.whole
            break
        return part

    # ----------------------------------------------------------------------------------------

    @property
    def _stall(self) -> str:
        """Problem to report while a check of the tasks does not end; else ""."""
        if not self.has_stalled():
            return ""
        return (
            f"its agent has been checking its tasks for more than {_STALLED_S:g} s: a file "
            "system or the kernel does not answer; see the agent's log, and restart it"
        )

    def has_stalled(self) -> bool:
        """Return whether the last check of the tasks has not ended for too long."""
        stalled = boottime_s() > self._looked_s + _STALLED_S
        if stalled != self._stalled:
            self._stalled = stalled
            said = "check of the tasks does not end" if stalled else "tasks are checked again"
            log(logging.ERROR if stalled else logging.INFO, said)
        return stalled

    @property
    def _report_s(self) -> float:
        runs = any(task.phase == pb.TASK_RUNNING for task in self._said[1])
        return min(self.heartbeat_s, RUNNING_S) if runs else self.heartbeat_s

    @property
    def _has_tasks(self) -> bool:
        return any(task.step is not Step.ENDED for task in tuple(self.core.tasks.values()))

    def _obeys(self, orders: pb.NodeOrders) -> bool:
        return self._cluster.obeys(orders.cluster_id, has_tasks=self._has_tasks)

    def _step(self) -> None:
        """One look; in a thread of its own, and never two at once."""
        heard, self._orders = self._orders, None
        if heard is not None:
            for over in self.core.obey(heard[1], boottime_s()):
                self._drop(over)
        self._observe()
        self.core.decide(boottime_s())
        if self._forecasts.failure != self._missing:
            self._missing = self._forecasts.failure
            if self._missing:
                log(logging.WARNING, "nobody but the controller foretells", error=self._missing)
        for process, known in self._started():
            self._want(process, known)
        if heard is not None:
            self._lease.obey(heard[0])
        self._probe()
        self._begin_tasks()
        self._said = self._said[0] if heard is None else heard[1].version, self.core.report()
        self._looked_s = boottime_s()

    def _observe(self) -> None:
        """See what the tasks' processes do."""
        end_overdue(self._options.state, self._processes.values(), boottime_s())
        for name, task in tuple(self._processes.items()):
            known = self.core.tasks.get(name)
            if known is None or known.step is Step.ENDED:
                continue
            seen = observe(task, self._meters[name], known.seen)
            if seen is None:  # also where a shim died before it noted that it starts the job:
                known.seen = None  # nothing was started, and the task is launched again
                continue
            # A shim that was killed leaves processes behind; until they are gone, the task is not.
            if seen.exit is not None and seen.exit.lost and sweep(self._options.state):
                continue
            self.core.see(name, seen, boottime_s())

    def _begin_tasks(self) -> None:
        """Make those that are to begin, and launch all that have not begun."""
        if boottime_s() < self._lease.until_s:
            for ready in tuple(self.core.ready()):
                self._make(ready)
        if self._lease.obeyed:  # what an earlier agent made, nobody may want any more
            failed: TaskFolderError | None = None
            for process, known in tuple(self._started()):
                if known.seen is None:
                    failed = self._launch(process, known, failed)

    def _started(self) -> Iterator[tuple[Task, NodeTask]]:
        """Tasks that have a folder, and are not over."""
        for name, known in tuple(self.core.tasks.items()):
            process = self._processes.get(name)
            if process is not None and known.step is Step.STARTED:
                yield process, known

    def _make(self, task: NodeTask) -> None:
        """Make a task's folder: from then on its shim alone says what becomes of it.

        Where the disk is full it goes back to the controller, and no other comes until there is
        room.
        """
        path = self._options.state.resolve() / TASKS / task_name(*task.name)
        try:
            process = create(self._options.state, spec_of(task, self._options), wanted_of(task))
        except (TaskFolderError, InvalidJobError) as error:
            if str(error) != task.why:
                log(logging.ERROR, "not started", job=task.name[0], error=str(error))
            task.why = str(error)
            if TaskFolder(path).holder() is not None:  # an earlier agent's, that is being ended
                return
            now_s = boottime_s()
            task.unmade_s = task.unmade_s or now_s
            self._problem = self._cannot_make()
            if not self._problem and no_capacity(error):  # there may be, but not for this one
                self._problem = str(error)
                self._needed_bytes = max(2 * self._needed_bytes, 2 * task.order.ByteSize())
                self._needed_s = now_s
            self._probe_s = now_s + PROBE_S
            its_own = not self._problem and now_s - task.unmade_s > OWN_FAULT_S
            if isinstance(error, InvalidJobError) or path.exists() or its_own:
                over = pb.Exit(lost=path.exists(), how=str(error))
                self.core.see(task.name, Seen(0.0, None, task.order.done, None, 0, 0, over), now_s)
            elif self._problem:
                self.core.hand_back(task.name, self._problem)
            return
        self._processes[task.name], self._meters[task.name] = process, meter_of(process)
        self.core.made(task.name)

    def _probe(self) -> None:
        """Whether tasks can be made and launched again."""
        if self._problem and boottime_s() >= self._probe_s:
            self._problem = self._cannot_make() or cannot_launch()
            self._probe_s = boottime_s() + PROBE_S

    def _cannot_make(self) -> str:
        if boottime_s() - self._needed_s > NEEDED_S:  # small ones may have what there is
            self._needed_bytes = 0
        return cannot_make(self._options.state, self._options.checkpoints, self._needed_bytes)

    def _want(self, process: Task, task: NodeTask) -> None:
        """Tell a task's shim what is wanted."""
        try:
            want(process.folder, wanted_of(task))
        except TaskFolderError as error:
            if str(error) != task.why:
                log(logging.ERROR, "not told", job=task.name[0], error=str(error))
            task.why = str(error)

    def _launch(
        self, process: Task, task: NodeTask, failed: TaskFolderError | None
    ) -> TaskFolderError | None:
        """Let a task's shim begin; why none can, if that is so: then it is not tried for others.

        If none can for a while the task goes back to the controller, and no other comes.
        """
        if failed is None:
            try:
                if launch(process):
                    log(logging.INFO, "started", job=task.name[0], attempt=task.name[1])
            except TaskFolderError as error:
                failed = error
            else:
                return None
        now_s = boottime_s()
        if str(failed) != task.why:
            log(logging.ERROR, "not launched", job=task.name[0], error=str(failed))
        task.why, task.unlaunched_s = str(failed), task.unlaunched_s or now_s
        if task.end or now_s - task.unlaunched_s > OWN_FAULT_S:
            self._unmake(process, task, str(failed))
        return failed

    def _unmake(self, process: Task, task: NodeTask, why: str) -> None:
        """Give a task back whose shim never began; its job was never started, and now cannot be."""
        if state_of(process.folder) is not TaskState.NEW:
            return
        try:
            remove(process.folder)
        except TaskFolderError as error:
            log(logging.ERROR, "not removed", error=str(error))
            return
        del self._processes[task.name], self._meters[task.name]
        if not task.end:
            self._problem, self._probe_s = why, boottime_s() + PROBE_S
        self.core.unmade(task.name, why)

    def _adopt(self, task: Task) -> None:
        order = ParseDict(dict(task.spec.more["order"]), pb.TaskOrder())
        allocations = tuple(Allocation(*row) for row in task.spec.more["allocations"])
        # Unless its file is damaged, which says less than what it was first given.
        wanted = task.folder.wanted() or Wanted(
            allocations[0].compute_milli if allocations else FULL_DEVICE_MILLI
        )
        allocations = tuple(
            allocation._replace(compute_milli=wanted.compute_milli)
            if len(allocations) == 1
            else allocation
            for allocation in allocations
        )
        name = task.spec.job_id, task.spec.attempt
        end = wanted.end.why if wanted.end is not None else ""
        meter = meter_of(task)
        seen = observe(task, meter, None)
        ran_s = 0.0 if seen is None else seen.ran_s
        self.core.restore(
            order, allocations, boottime_s(), end=end, paused=wanted.paused, ran_s=ran_s
        )
        self._processes[name], self._meters[name] = task, meter

    def _give_up(self, folder: TaskFolder, why: str) -> None:
        """End a task of which nobody can tell what it is; its folder is left to the operator."""
        log(logging.ERROR, "a task that cannot be read", folder=str(folder.path), error=why)
        if folder.holder() is None:
            return
        try:
            want(folder, Wanted(end=End(checkpoint=True, why="its agent cannot read it")))
        except TaskFolderError as error:
            log(logging.ERROR, "not told", folder=str(folder.path), error=str(error))

    def _drop(self, over: NodeTask) -> None:
        """A task that is over, and on the controller's disk."""
        task = self._processes.get(over.name)
        if task is None:
            return
        if self.outbox is not None and (outcome := self._outcome(over, task.folder)) is not None:
            self.outbox.put(outcome, task.folder.name)
        keep_log(task.folder)
        del self._processes[over.name], self._meters[over.name]
        try:
            remove(task.folder)
        except TaskFolderError as error:
            log(logging.ERROR, "not removed", error=str(error))

    def _outcome(self, over: NodeTask, folder: TaskFolder) -> pb_outcome.Outcome | None:
        if not over.allocations:
            return None
        slot, shim = self._options.slots[over.allocations[0].device], folder.shim_state()
        held, ended = "" if shim is None else shim.compute, folder.exit()
        ended_s = time.time() if ended is None else ended.ended_at_unix_s
        return outcome_of(over, slot, self.core.tasks, self._agent_id, held, ended_s)


def _news(version: int, tasks: Sequence[pb.Task]) -> tuple[int, list[pb.Task]]:
    """What of a report others wait for: all but what moves while a task runs."""
    kept = []
    for task in tasks:
        one = pb.Task()
        one.CopyFrom(task)
        one.ran_s = float(task.ran_s > 0)  # that it has begun
        for name in ("done", "rest_s", "usage_milli", "memory_bytes", "peak_memory_bytes"):
            one.ClearField(name)
        kept.append(one)
    return version, kept
