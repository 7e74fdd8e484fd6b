"""Node agent: applies the controller's orders to its node and reports the state of its tasks.

It can be killed at any moment: its state is in its state folder, and its tasks keep running. Each
acknowledged report extends the lease that they run under.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from google.protobuf.json_format import ParseDict, ParseError

from presage.errors import InvalidJobError, TaskFolderError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.agent_state import load_agent_id, lock_state
from presage.schedulers.live.agent.connection.cluster_membership import ClusterMembership
from presage.schedulers.live.agent.connection.lease import boottime_s
from presage.schedulers.live.agent.connection.lease_renewal import LeaseRenewal
from presage.schedulers.live.agent.connection.significant_state import (
    have_readings_moved,
    significant_report,
    significant_state,
)
from presage.schedulers.live.agent.controller_forecasts import (
    ControllerForecaster,
    LocalForecaster,
    ReceivedForecasts,
)
from presage.schedulers.live.agent.elastic_worker import LeaderFiles
from presage.schedulers.live.agent.health.health_monitor import HealthMonitor
from presage.schedulers.live.agent.isolation.task_usage import Meter, make_meter
from presage.schedulers.live.agent.node_core import NodeCore
from presage.schedulers.live.agent.node_task import Name, NodeTask, Observation, Step
from presage.schedulers.live.agent.observation import observe
from presage.schedulers.live.agent.outcome_outbox import Outbox, make_outcome
from presage.schedulers.live.agent.task_specs import desired_state, make_spec, memory_share_bytes
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.leftovers import sweep
from presage.schedulers.live.agent.tasks.log_archive import archive_log, archived_log
from presage.schedulers.live.agent.tasks.log_file import read_log
from presage.schedulers.live.agent.tasks.overdue import end_overdue
from presage.schedulers.live.agent.tasks.task import DesiredState, End
from presage.schedulers.live.agent.tasks.task_folder import TASKS, TaskFolder
from presage.schedulers.live.agent.tasks.task_process import (
    Task,
    TaskState,
    adopt,
    create,
    is_disk_fault,
    launch,
    remove,
    remove_leftovers,
    set_desired_state,
    task_state,
    why_cannot_create,
    why_cannot_launch,
)
from presage.schedulers.live.tracing.task_spans import TaskSpans
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log
from presage.serving.v1 import prediction_pb2 as pb_outcome

POLL_S = 0.5  # between checks of the tasks
TASK_FAULT_S = 30.0  # a task that cannot be started for so long while others can is at fault
NO_SPACE_S = 60.0  # a node gets no tasks for so long after a task found too little disk space
PROBE_S = 10.0  # between tests of whether tasks can be started again
RUNNING_REPORT_S = 1.0  # at most between reports while a task runs
_REPORTS_PER_LEASE = 4  # so that some may be lost
STALLED_S = 30.0  # limit of one check of the tasks; the launch of a shim may take 20
_CLEAN_UP_S = 10.0  # between removals of leftovers of tasks
_CLEAN_UP_LIMIT_S = 5.0  # limit of one of them


class Agent:
    """Agent of a node, in the running event loop.

    Parameters
    ----------
    local_forecaster : callable or None
        Returns a new local forecaster, with an empty cache; None to use the controller's forecasts.
    outbox : Outbox or None
        Receives the outcomes of ended tasks; None to report no outcomes.
    spans : TaskSpans or None
        Traces of tasks; None for none.

    Raises
    ------
    ConfigError
        Another agent uses the state folder, or it cannot be written.
    """

    def __init__(
        self,
        options: AgentOptions,
        local_forecaster: Callable[[], Forecaster] | None = None,
        outbox: Outbox | None = None,
        spans: TaskSpans | None = None,
    ) -> None:
        self._options, self._spans = options, spans
        self._lock = lock_state(options.state)
        self.agent_id = load_agent_id(options.state)
        devices = [(slot.kind, slot.memory_bytes) for slot in options.slots]
        received = ReceivedForecasts()
        controller = ControllerForecaster(received)

        def make_forecaster() -> Forecaster:
            if local_forecaster is None:
                return controller
            return LocalForecaster(received, local_forecaster())

        forecasts = PredictionCache(make_forecaster, fallback=controller)
        self.core = NodeCore(options.node, devices, forecasts.get, received)
        self._forecasts, self._forecast_failure = forecasts, ""  # the last one that was logged
        self.processes: dict[Name, Task] = {}
        self._meters: dict[Name, Meter] = {}
        self._woken, self._changed = asyncio.Event(), asyncio.Event()
        self._orders: tuple[int, pb.NodeCommands] | None = None  # not applied yet
        self._lease = LeaseRenewal(options.state)
        self.checked_s = boottime_s()  # when all tasks were last checked
        self._stalled = False
        self._cluster = ClusterMembership(options.state)
        self._rejected: pb.NodeCommands | None = None  # of another cluster
        self._reported: tuple[int, list[pb.Task]] = (0, [])  # version of the orders applied, tasks
        self.problem = ""  # why no task can be started here
        self._probe_s = 0.0  # when to try again
        self._needed_bytes = 0  # on the disk, by a task that recently found too little
        self._needed_s = 0.0  # when it did
        self._number = 0
        self._sent_s: dict[int, float] = {}  # when each report was sent, by its number
        self._lease_s = 0.0
        self._pace = (0.0, 0.0)  # least times between heartbeats and whole reports; 0: unknown
        self.orders_received = 0
        self.controller_host = ""
        self._leader_files = LeaderFiles()
        self._health = HealthMonitor(options)
        self.outbox = outbox
        self.logs: asyncio.Queue[pb.LogRequest] = asyncio.Queue()

    def adopt_tasks(self) -> None:
        """Take over the tasks of an earlier agent; end processes that have no shim."""
        found = adopt(self._options.state)
        # In the order of attempts: the controller may still want the last attempt of a job.
        for task in sorted(found.tasks, key=lambda task: task.spec.attempt):
            try:
                self._adopt(task)
            except (KeyError, TypeError, ValueError, ParseError, InvalidJobError) as error:
                self._end_unreadable(task.folder, str(error))
        for folder in found.damaged:
            self._end_unreadable(folder, "its spec.json cannot be read")
        sweep(self._options.state)
        self._step()

    def close(self) -> None:
        """Release the state folder, so that another agent can use it. Tasks continue."""
        os.close(self._lock)

    async def run(self) -> None:
        """Check the tasks, decide and act, periodically, until cancelled."""
        cleaning = asyncio.create_task(self._clean_up())
        loop = asyncio.get_running_loop()
        self._health.watch_driver(lambda: loop.call_soon_threadsafe(self._changed.set))
        try:
            await self._poll()
        finally:
            cleaning.cancel()

    async def _poll(self) -> None:
        while True:
            self._woken.clear()
            before = self._reported_state()
            await asyncio.to_thread(self._step)
            if self._reported_state() != before:
                self._changed.set()
            try:
                await asyncio.wait_for(self._woken.wait(), POLL_S)
            except TimeoutError:
                continue

    async def _clean_up(self) -> None:
        """Remove leftovers of ended tasks, periodically."""
        while True:
            await asyncio.to_thread(remove_leftovers, self._options.state, _CLEAN_UP_LIMIT_S)
            await asyncio.sleep(_CLEAN_UP_S)

    def receive(self, orders: pb.NodeCommands) -> None:
        """Take orders from the controller, to apply them at the next check.

        Orders of another cluster are ignored while tasks of this cluster have not ended.
        """
        self.orders_received += 1
        full = self._rejected if orders.unchanged else orders
        if full is not None and not self._accepts(full):
            self._rejected = full
            return
        self._rejected = None
        if full is not None:
            self._orders = self._lease.count_orders(), full
            self._health.acknowledge(full.signals_id, full.signals_number)
            self._woken.set()
        self._pace = orders.heartbeat_s, orders.report_s
        # Also from orders that acknowledge no report.
        self._lease_s = (full or orders).lease_s or self._lease_s
        sent_s = self._sent_s.get(orders.report_number)
        if sent_s is not None:
            self._sent_s = {n: s for n, s in self._sent_s.items() if n > orders.report_number}
            # A stalled check does not extend the lease of the tasks.
            self._lease.extend(min(sent_s, self.checked_s + STALLED_S) + self._lease_s)
        for request in orders.log_requests:
            self.logs.put_nowait(request)

    async def reports(self) -> AsyncIterator[pb.NodeReport]:
        """Yield the reports for a new stream: at once, after each change, and at each heartbeat.

        While a task runs, the heartbeat is one second, or what the controller requests; its
        progress and usage do not count as a change. Between whole reports of a state that has not
        changed, heartbeats repeat the last one, if the controller accepts that. A temperature or
        power that moved waits for the time of the next whole report. While a check of
        the tasks does not end, the report contains that problem until the lease is over; then no
        reports follow, and the controller treats the node as lost.
        """
        self._sent_s.clear()
        self._pace = (0.0, 0.0)  # of a controller that accepts only whole reports
        last, last_s = None, 0.0
        devices: Sequence[pb.Device] = ()  # of the last whole report
        while True:
            if self.has_stalled() and boottime_s() > self._lease.until_s:
                await asyncio.sleep(POLL_S)
                continue
            self._changed.clear()
            self._number += 1
            self._sent_s[self._number] = boottime_s()
            report = self._report()
            state = significant_report(report)
            now_s, is_due = boottime_s(), self._pace[0] <= 0 or state != last
            is_old = report.tasks or have_readings_moved(devices, report.devices)
            if is_due or (is_old and now_s - last_s >= self._whole_report_s):
                last, last_s, devices = state, now_s, report.devices
                yield report
            else:
                yield pb.NodeReport(number=report.number, unchanged=True)
            try:
                await asyncio.wait_for(self._changed.wait(), self._report_s)
            except TimeoutError:
                continue

    @property
    def heartbeat_s(self) -> float:
        """Interval of reports and of attempts to connect to the controller, at most."""
        lease_s = self._lease_s or _REPORTS_PER_LEASE * self._options.heartbeat_s
        return min(max(self._options.heartbeat_s, self._pace[0]), lease_s / _REPORTS_PER_LEASE)

    def _report(self) -> pb.NodeReport:
        """Return a whole report."""
        version, tasks = self._reported
        return pb.NodeReport(
            node=self._options.node,
            agent_id=self.agent_id,
            number=self._number,
            devices=[
                pb.Device(
                    kind=slot.kind,
                    memory_bytes=slot.memory_bytes,
                    id=slot.device_id,
                    **self._health.reading(slot.device_id)._asdict(),
                )
                for slot in self._options.slots
            ],
            tasks=tasks,
            commands_version=version,
            problem=self._stall or self.problem,
            cluster_id=self._cluster.cluster_id if self._has_tasks else "",
            signals=self._health.signals(),
            signals_id=self._health.signals_id,
        )

    def log_part(self, request: pb.LogRequest, max_bytes: int) -> pb.LogPart:
        """Return a part of a task's log, as ``tasks.log_file.read_log`` does."""
        name = request.task.job_id, request.task.attempt
        task = self.processes.get(name)
        archived = archived_log(self._options.state, task_name(*name))
        ended = name not in self.core.tasks or (
            task is not None and task_state(task.folder) not in (TaskState.NEW, TaskState.RUNNING)
        )
        part = pb.LogPart(request_id=request.request_id, offset=max(0, request.offset), ended=ended)
        for log_file in (archived,) if task is None else (task.folder.log, archived):
            try:
                read = read_log(log_file, request.offset, max_bytes)
                part.offset, part.content = read.offset, read.content
            except (OSError, ValueError):  # no file, or larger than the message allows
                continue
            part.ended = ended and read.is_complete
            break
        return part

    # ----------------------------------------------------------------------------------------

    @property
    def _stall(self) -> str:
        """Problem to report while a check of the tasks does not end; else ""."""
        if not self.has_stalled():
            return ""
        return (
            f"its agent has been checking its tasks for more than {STALLED_S:g} s: a file "
            "system or the kernel does not answer; see the agent's log, and restart it"
        )

    def has_stalled(self) -> bool:
        """Return whether the last check of the tasks has not ended for too long."""
        stalled = boottime_s() > self.checked_s + STALLED_S
        if stalled != self._stalled:
            self._stalled = stalled
            text = "check of the tasks does not end" if stalled else "tasks are checked again"
            log(logging.ERROR if stalled else logging.INFO, text)
        return stalled

    @property
    def _runs(self) -> bool:
        """Whether a task runs."""
        return any(task.phase == pb.TASK_RUNNING for task in self._reported[1])

    @property
    def _whole_report_s(self) -> float:
        """Interval of whole reports of a node with tasks, if nothing else changes."""
        return max(RUNNING_REPORT_S, self._pace[1])

    @property
    def _report_s(self) -> float:
        return min(self.heartbeat_s, self._whole_report_s) if self._runs else self.heartbeat_s

    def _reported_state(self) -> tuple[object, ...]:
        return significant_state(*self._reported), self.problem, self._health.last_number

    @property
    def _has_tasks(self) -> bool:
        return any(task.step is not Step.ENDED for task in tuple(self.core.tasks.values()))

    def _accepts(self, orders: pb.NodeCommands) -> bool:
        return self._cluster.accepts(orders.cluster_id, has_tasks=self._has_tasks)

    def _step(self) -> None:
        """Run one check, in a separate thread; calls do not overlap."""
        received, self._orders = self._orders, None
        if received is not None:
            for ended in self.core.apply(received[1], boottime_s()):
                self._remove(ended)
        self._observe()
        self._health.read_log()  # a device's error is logged before the tasks on it end
        self.core.decide(boottime_s())
        if self._forecasts.failure != self._forecast_failure:
            self._forecast_failure = self._forecasts.failure
            if self._forecast_failure:
                text = "local forecaster failed; using the controller's forecasts"
                log(logging.WARNING, text, error=self._forecast_failure)
        for process, known in self._started():
            self._write_leader(process, known)
            self._write_desired_state(process, known)
        if received is not None:
            self._lease.apply(received[0])
        self._probe()
        self._start_tasks()
        version = self._reported[0] if received is None else received[1].version
        self._reported = version, self.core.report()
        self.checked_s = boottime_s()

    def _observe(self) -> None:
        """Observe the processes of the tasks."""
        end_overdue(self._options.state, self.processes.values(), boottime_s())
        for name, task in tuple(self.processes.items()):
            known = self.core.tasks.get(name)
            if known is None or known.step is Step.ENDED:
                continue
            observation = observe(task, self._meters[name], known.observation)
            # Also if a shim died before it recorded the start of the job: it is launched again.
            if observation is None:
                known.observation = None
                continue
            # A killed shim leaves processes behind; the task ends when they are gone.
            task_exit = observation.exit
            if task_exit is not None and task_exit.lost and sweep(self._options.state):
                continue
            self.core.observe(name, observation, boottime_s())

    def _start_tasks(self) -> None:
        """Create the tasks that are ready, and launch those that are not running."""
        if boottime_s() < self._lease.until_s:
            for ready in tuple(self.core.ready()):
                self._create(ready)
        if self._lease.has_applied:  # until then, orders may end what an earlier agent created
            failed: TaskFolderError | None = None
            for process, known in tuple(self._started()):
                if known.observation is None:
                    failed = self._launch(process, known, failed)

    def _started(self) -> Iterator[tuple[Task, NodeTask]]:
        """Yield the tasks that have a folder and have not ended."""
        for name, known in tuple(self.core.tasks.items()):
            process = self.processes.get(name)
            if process is not None and known.step is Step.STARTED:
                yield process, known

    def _create(self, task: NodeTask) -> None:
        """Create a task's folder; from then on its shim records its state.

        If the disk is full, the task returns to the controller, and the node gets no other task
        until there is space.
        """
        path = self._options.state.resolve() / TASKS / task_name(*task.name)
        try:
            process = create(
                self._options.state, make_spec(task, self._options), desired_state(task)
            )
        except (TaskFolderError, InvalidJobError) as error:
            if str(error) != task.why:
                log(logging.ERROR, "not started", job=task.name[0], error=str(error))
            task.why = str(error)
            if TaskFolder(path).holder() is not None:  # created by an earlier agent, being ended
                return
            now_s = boottime_s()
            task.create_failed_s = task.create_failed_s or now_s
            self.problem = self._why_cannot_create()
            # There may be some space, but not enough for this task.
            if not self.problem and is_disk_fault(error):
                self.problem = str(error)
                self._needed_bytes = max(2 * self._needed_bytes, 2 * task.order.ByteSize())
                self._needed_s = now_s
            self._probe_s = now_s + PROBE_S
            is_task_fault = not self.problem and now_s - task.create_failed_s > TASK_FAULT_S
            if isinstance(error, InvalidJobError) or path.exists() or is_task_fault:
                task_exit = pb.Exit(lost=path.exists(), description=str(error))
                failed = Observation(0.0, None, task.order.done, None, 0, 0, task_exit)
                self.core.observe(task.name, failed, now_s)
            elif self.problem:
                self.core.return_to_controller(task.name, self.problem)
            return
        self.processes[task.name], self._meters[task.name] = process, make_meter(process)
        self.core.mark_started(task.name)
        self._write_leader(process, task)

    def _probe(self) -> None:
        """Test whether tasks can be created and launched again, if it is time to."""
        if self.problem and boottime_s() >= self._probe_s:
            self.problem = self._why_cannot_create() or why_cannot_launch()
            self._probe_s = boottime_s() + PROBE_S

    def _why_cannot_create(self) -> str:
        if boottime_s() - self._needed_s > NO_SPACE_S:  # small tasks may fit
            self._needed_bytes = 0
        return why_cannot_create(self._options.state, self._options.checkpoints, self._needed_bytes)

    def _write_leader(self, process: Task, task: NodeTask) -> None:
        """Pass the address of its leader, and its memory share, to a worker of an elastic job."""
        if not task.order.worker.job_id:
            return
        try:
            share_bytes = memory_share_bytes(task.allocations, self._options.slots)
            self._leader_files.write_share(process, task.order.worker, share_bytes)
            self._leader_files.write(process, task.order.worker, self.controller_host)
        except OSError as error:
            task.why = f"files for its worker cannot be written ({error}); free disk space"

    def _write_desired_state(self, process: Task, task: NodeTask) -> None:
        """Pass the desired state of a task to its shim."""
        try:
            set_desired_state(process.folder, desired_state(task))
        except TaskFolderError as error:
            if str(error) != task.why:
                log(logging.ERROR, "desired state not written", job=task.name[0], error=str(error))
            task.why = str(error)

    def _launch(
        self, process: Task, task: NodeTask, failed: TaskFolderError | None
    ) -> TaskFolderError | None:
        """Launch a task's shim; return the error, after which no others are tried in this check.

        If the launch fails for ``TASK_FAULT_S``, the task returns to the controller, and the node
        gets no other task.
        """
        if failed is None:
            try:
                if launch(process):
                    log(logging.INFO, "started", job=task.name[0], attempt=task.name[1])
                    if self._spans is not None:
                        self._spans.trace_start(task)
            except TaskFolderError as error:
                failed = error
            else:
                return None
        now_s = boottime_s()
        if str(failed) != task.why:
            log(logging.ERROR, "not launched", job=task.name[0], error=str(failed))
        task.why, task.launch_failed_s = str(failed), task.launch_failed_s or now_s
        if task.end or now_s - task.launch_failed_s > TASK_FAULT_S:
            self._return_task(process, task, str(failed))
        return failed

    def _return_task(self, process: Task, task: NodeTask, why: str) -> None:
        """Return a task to the controller whose shim, and so whose job, was never started."""
        if task_state(process.folder) is not TaskState.NEW:
            return
        try:
            remove(process.folder)
        except TaskFolderError as error:
            log(logging.ERROR, "not removed", error=str(error))
            return
        del self.processes[task.name], self._meters[task.name]
        if not task.end:
            self.problem, self._probe_s = why, boottime_s() + PROBE_S
        self.core.mark_not_started(task.name, why)

    def _adopt(self, task: Task) -> None:
        order = ParseDict(dict(task.spec.agent_data["command"]), pb.TaskCommand())
        allocations = tuple(Allocation(*row) for row in task.spec.agent_data["allocations"])
        # The first allocations, if the file is damaged.
        desired = task.folder.desired_state() or DesiredState(
            allocations[0].compute_milli if allocations else FULL_DEVICE_MILLI
        )
        allocations = tuple(
            allocation._replace(compute_milli=desired.compute_milli)
            if len(allocations) == 1
            else allocation
            for allocation in allocations
        )
        name = task.spec.job_id, task.spec.attempt
        end = desired.end.reason if desired.end is not None else ""
        meter = make_meter(task)
        observation = observe(task, meter, None)
        ran_s = 0.0 if observation is None else observation.ran_s
        self.core.restore(
            order, allocations, boottime_s(), end=end, paused=desired.paused, ran_s=ran_s
        )
        self.processes[name], self._meters[name] = task, meter

    def _end_unreadable(self, folder: TaskFolder, why: str) -> None:
        """End a task whose spec cannot be read; its folder remains for the operator to remove."""
        log(logging.ERROR, "a task cannot be read", folder=str(folder.path), error=why)
        if folder.holder() is None:
            return
        try:
            set_desired_state(
                folder, DesiredState(end=End(checkpoint=True, reason="its agent cannot read it"))
            )
        except TaskFolderError as error:
            log(
                logging.ERROR,
                "desired state not written",
                folder=str(folder.path),
                error=str(error),
            )

    def _remove(self, ended: NodeTask) -> None:
        """Remove an ended task that the controller has recorded."""
        task = self.processes.get(ended.name)
        if task is None:
            return
        if self.outbox is not None and (outcome := self._outcome(ended, task.folder)) is not None:
            self.outbox.put(outcome, task.folder.name)
        archive_log(task.folder)
        self._leader_files.forget(task)
        del self.processes[ended.name], self._meters[ended.name]
        try:
            remove(task.folder)
        except TaskFolderError as error:
            log(logging.ERROR, "not removed", error=str(error))

    def _outcome(self, ended: NodeTask, folder: TaskFolder) -> pb_outcome.Outcome | None:
        if not ended.allocations:
            return None
        slot, shim = self._options.slots[ended.allocations[0].device], folder.shim_state()
        enforcement, task_exit = "" if shim is None else shim.enforcement, folder.exit()
        ended_s = time.time() if task_exit is None else task_exit.ended_at_unix_s
        return make_outcome(ended, slot, self.core.tasks, self.agent_id, enforcement, ended_s)
