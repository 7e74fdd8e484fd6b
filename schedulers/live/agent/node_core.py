"""Decisions of an agent about its node: devices, shares, pauses and ends of its tasks.

Pure: the inputs are the controller's orders, observations of processes and the time; the output is
the desired state of each task. The rules are those of :mod:`presage.schedulers.policies.sharing`,
on a ledger of this node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.backend import reconcile
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.live.agent.controller_choice import ControllerChoice
from presage.schedulers.live.agent.controller_forecasts import ReceivedForecasts
from presage.schedulers.live.agent.node_backend import NodeBackend
from presage.schedulers.live.agent.node_task import (
    MIN_SAMPLES,
    RATE_WINDOW_S,
    Name,
    NodeTask,
    Observation,
    Step,
)
from presage.schedulers.live.protocol.node_devices import make_cluster
from presage.schedulers.live.protocol.wire import (
    read_job,
    read_predictions,
    write_allocations,
)
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.policies.sharing.slo import is_violated, remaining_s
from presage.schedulers.v1 import cluster_pb2 as pb

PATIENCE_S = 5.0  # for free capacity, which there was when the controller chose this node
LOCAL_PATIENCE_S = 2.0  # with the local forecasts; then only the controller's count
_TOLERANCE = 1.02  # a smaller excess of a device's memory is a matter of how it is counted
_PHASES = {
    Step.WAITING: pb.TASK_WAITING,
    Step.ALLOCATED: pb.TASK_WAITING,
    Step.ENDED: pb.TASK_ENDED,
}


class NodeCore:
    """Tasks of a node, from their first order until the controller removes them.

    Parameters
    ----------
    devices : sequence of (str, int)
        Kind and bytes of memory of each.
    forecasts : callable
        Returns current forecasts for a cluster, at a time in seconds.
    received : ReceivedForecasts
        The controller's forecasts; this class adds and removes jobs.

    Attributes
    ----------
    tasks : dict of (str, int) to NodeTask
    backend : NodeBackend
        Ledger of the node, by which the agent decides about its tasks.
    """

    def __init__(
        self,
        node: str,
        devices: Sequence[tuple[str, int]],
        forecasts: Callable[[Cluster, float], Forecasts],
        received: ReceivedForecasts,
    ) -> None:
        self.cluster = make_cluster([(node, devices)])
        self._forecasts, self.received = forecasts, received
        self.tasks: dict[Name, NodeTask] = {}
        self._policy: Policy = ControllerChoice(self.tasks.values())
        self._settings: pb.Sharing | None = None
        self.backend = NodeBackend(
            self.cluster, forecasts, self.tasks, partial(self._end, checkpoint=True)
        )
        self._now_s = 0.0

    # Inputs ---------------------------------------------------------------------------------

    def apply(self, orders: pb.NodeCommands, now_s: float) -> list[NodeTask]:
        """Take over the controller's orders; return the ended tasks that are removed by them."""
        self._set_policy(orders)
        assigned = {(row.job.job_id, row.attempt): row for row in orders.tasks}
        for name, order in assigned.items():
            if name not in self.tasks:
                self._add(order, now_s)
            task = self.tasks[name]
            task.is_assigned = True
            if order.worker.port:  # the leader of an elastic job may have been started again
                task.order.worker.CopyFrom(order.worker)
            if order.worker.job_id and order is not task.order:
                # Its share changes as other jobs come and leave.
                task.order.ClearField("allocations")
                task.order.allocations.extend(order.allocations)
            if order.end_reason:
                self._end(task, order.end_reason, checkpoint=not order.discard)
        for name, task in self.tasks.items():
            if name not in assigned:
                task.is_assigned = False
                self._end(task, "the controller does not list it any more", checkpoint=True)
        self._withdraw(frozenset(orders.withdrawn_devices), now_s)
        removed = []
        for row in orders.forget:
            ended = self.tasks.get((row.job_id, row.attempt))
            if ended is not None and ended.step is Step.ENDED and not ended.is_assigned:
                removed.append(ended)
                self._forget(ended)
        return removed

    def _withdraw(self, devices: frozenset[int], now_s: float) -> None:
        """Place no tasks on withdrawn devices, and end those that are there."""
        withdrawn = {one for one in devices if 0 <= one < self.cluster.devices}
        for task in self.tasks.values():
            hit = withdrawn.intersection(allocation.device for allocation in task.allocations)
            if hit:
                self._end(task, f"device {min(hit)} is withdrawn", checkpoint=True)
        failed = self.backend.ledger.failed_devices
        for device in sorted(withdrawn - failed):
            self.backend.ledger.fail(self.cluster.node_of[device], now_s, device)
        for device in sorted(failed - withdrawn):
            self.backend.ledger.repair(self.cluster.node_of[device], now_s, device)

    def restore(
        self,
        order: pb.TaskCommand,
        allocations: tuple[Allocation, ...],
        now_s: float,
        *,
        end: str,
        paused: bool,
        ran_s: float,
    ) -> None:
        """Add a task whose folder an earlier agent created; attempts of a job go in order."""
        task = self._add(order, now_s)
        fits = task.step is not Step.ENDED
        task.allocations, task.step, task.observation = allocations, Step.STARTED, None
        task.end, task.paused, task.is_partly_observed = end, paused, True
        if not fits or any(allocation.device >= self.cluster.devices for allocation in allocations):
            self._end(task, "the node does not have its devices any more", checkpoint=True)
            task.allocations = ()
        elif end:
            self.backend.release(task)
        else:
            phase = Phase.PAUSED if paused else Phase.RUNNING
            if self.backend.hold(task, phase, now_s, ran_s):  # let it run to its end all the same
                task.why = "its allocation exceeds the free capacity of its devices"

    def mark_started(self, name: Name) -> None:
        """Note that a task's folder exists: its process may start at any moment."""
        task = self.tasks[name]
        task.step, task.why = Step.STARTED, ""

    def observe(self, name: Name, observation: Observation, now_s: float) -> None:
        """Record an observation of a task's process."""
        task = self.tasks[name]
        self._record(task, observation)
        task.observation = observation
        if observation.exit is not None:
            task.step = Step.ENDED
            self.backend.release(task)
            return
        task.step = Step.STARTED
        job_id = name[0]
        if self.backend.current(job_id) is task and not task.has_run and observation.ran_s > 0:
            task.has_run = True
            if not task.order.elapsed_s:
                self.backend.set_first_start(job_id, now_s - observation.ran_s)
        done = self._done(task, observation)
        rate, max_rate = task.progress_per_s, task.max_progress_per_s
        self.backend.progress.report(job_id, done, now_s, rate, observation.saved, max_rate)
        # Its use before the first iteration is not part of the predicted compute use. A paused
        # task always counts: its mean has to fall, or it would stay paused for good.
        counts = observation.done is None or task.last_sample != task.first_sample or task.paused
        if observation.usage_milli is not None and counts:
            self.backend.usage.report(job_id, now_s, observation.usage_milli)

    # Decisions ------------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Place waiting tasks, and adjust running ones."""
        self._now_s = now_s
        self._end_overflows()
        reconcile(self.backend, self._policy, Random(0), now_s)  # noqa: S311
        if self._settings is not None:
            self._check_slos(now_s)
        self._return_unplaced(now_s)
        self._update_occupancy()

    def ready(self) -> Iterator[NodeTask]:
        """Yield the tasks to start: those with devices that no ending task still occupies."""
        leaving = {
            allocation.device
            for task in self.tasks.values()
            if task.step is Step.STARTED and task.end
            for allocation in task.allocations
        }
        for task in self.tasks.values():
            is_free = leaving.isdisjoint(allocation.device for allocation in task.allocations)
            if task.step is Step.ALLOCATED and is_free and not task.end:
                yield task

    def report(self) -> list[pb.Task]:
        """Return the state of all tasks of the node, for the controller."""
        return [self._task(task) for task in self.tasks.values()]

    # ----------------------------------------------------------------------------------------

    def _set_policy(self, orders: pb.NodeCommands) -> None:
        settings = orders.sharing if orders.HasField("sharing") else None
        if settings == self._settings:
            return
        self._settings = settings
        self._policy, self.backend.check_s = ControllerChoice(self.tasks.values()), 0.0
        for task in self.tasks.values():  # the next policy predicts them again, if there is one
            task.slo_violated, task.remaining_s = False, None
        if settings is not None:
            self.backend.check_s = settings.check_s
            self._policy = Sharing(
                settings.step_milli, settings.least_milli, settings.check_s, settings.overcommit,
                home_s=0.0, reserve=settings.reserve,
            ).agent_policy()  # fmt: skip

    def _add(self, order: pb.TaskCommand, now_s: float) -> NodeTask:
        submitted = read_job(order.job, now_s, "job")
        task = NodeTask(order, submitted, now_s)
        earlier = [other for other in self.tasks.values() if other.name[0] == task.name[0]]
        for attempt in earlier:  # it has ended, or is to end
            self.backend.release(attempt)
            self._end(attempt, "another attempt of its job is on this node", checkpoint=False)
        self.tasks[task.name] = task
        job = submitted.job
        self.received.by_job[job.job_id] = read_predictions(order.predictions)
        self._forecasts(self.cluster, now_s).forget(job)
        if why := self.backend.enter(task, now_s):
            task.step, task.why = Step.ENDED, why
            lost = pb.Exit(description=why, lost=True)
            task.observation = Observation(0.0, None, order.done, None, 0, 0, lost)
        return task

    def _end(self, task: NodeTask, why: str, *, checkpoint: bool) -> None:
        if task.step is Step.ENDED or (task.end and (checkpoint or not task.checkpoint)):
            return
        task.end, task.checkpoint, task.why = why, checkpoint, why
        self.backend.release(task)
        if task.step in (Step.WAITING, Step.ALLOCATED):
            task.step = Step.ENDED
            task.observation = Observation(
                0.0,
                None,
                task.order.done,
                None,
                0,
                0,
                pb.Exit(requested=True, description="never started"),
            )

    def _forget(self, task: NodeTask) -> None:
        self.backend.release(task)
        del self.tasks[task.name]
        job_id = task.name[0]
        if all(name[0] != job_id for name in self.tasks):
            self.received.forget(job_id)
            self.backend.forget(task.submitted.job)

    def _record(self, task: NodeTask, observation: Observation) -> None:
        """Add an observation to the totals and samples of a task."""
        more_s = max(0.0, observation.ran_s - task.runtime_s)
        task.busy_s += more_s * (observation.usage_milli or 0.0) / FULL_DEVICE_MILLI
        if observation.done and (
            task.last_sample is None or observation.done > task.last_sample[1]
        ):
            task.last_sample = observation.ran_s, observation.done
            task.first_sample = task.first_sample or task.last_sample
            task.samples.append(task.last_sample)
            window_s = observation.ran_s - RATE_WINDOW_S
            while len(task.samples) > MIN_SAMPLES and task.samples[1][0] < window_s:
                task.samples.popleft()
        devices = {allocation.device for allocation in task.allocations}
        for name, other in self.tasks.items():
            is_other = other.step is Step.STARTED and other is not task
            if is_other and not devices.isdisjoint(
                allocation.device for allocation in other.allocations
            ):
                task.colocated_s[name] = task.colocated_s.get(name, 0.0) + more_s

    def _update_occupancy(self) -> None:
        """Reset the rate of each task whose share or co-location has changed."""
        started = [task for task in self.tasks.values() if task.step is Step.STARTED]
        for task in self.tasks.values():
            devices = {allocation.device for allocation in task.allocations}
            occupancy = [(task.name, task.allocations, task.paused)] + [
                (other.name, other.allocations, other.paused)
                for other in started
                if other is not task and not devices.isdisjoint(g.device for g in other.allocations)
            ]
            if task.occupancy != occupancy:
                task.reset_rate(occupancy)

    def _done(self, task: NodeTask, observation: Observation) -> float:
        """Return the fraction of a job that is done; predicted, if the job does not report it."""
        if observation.done is not None:
            return observation.done
        kind = self.cluster.kind_of(task.allocations[0].device) if task.allocations else ""
        prediction = self.received.by_job[task.name[0]].get(kind)
        if prediction is None or not 0 < prediction.runtime_s < math.inf:
            return task.order.done
        return min(1.0, task.order.done + observation.ran_s / prediction.runtime_s)

    def _check_slos(self, now_s: float) -> None:
        """Predict the remaining run time of running tasks, and which SLOs are violated."""
        forecasts = self._forecasts(self.cluster, now_s)
        ledger, progress = self.backend.ledger, self.backend.progress
        for task in self.tasks.values():
            job = task.submitted.job
            task.remaining_s = None
            if task.step is not Step.STARTED or task.end or job.job_id not in ledger.jobs:
                continue
            prediction = forecasts.prediction(job, self.cluster.kind_of(task.allocations[0].device))
            elapsed_s = max(0.0, now_s - ledger.status(job.job_id).first_start_s)
            done = progress.at(job.job_id, now_s)
            pace_s = progress.pace_s(job.job_id)
            task.remaining_s = remaining_s(done, elapsed_s, prediction, pace_s)
            if job.latency_sensitive:
                task.slo_violated = is_violated(elapsed_s, done, prediction, pace_s)

    def _return_unplaced(self, now_s: float) -> None:
        """Return tasks to the controller whose capacity was allocated to others meanwhile."""
        for task in tuple(self.tasks.values()):
            waits_s = now_s - task.received_s if task.step is Step.WAITING else 0.0
            if waits_s > PATIENCE_S:
                self._end(task, "its node had no free capacity for it", checkpoint=False)
            elif waits_s > LOCAL_PATIENCE_S and task.name[0] not in self.received.binding:
                # Else it would come back here for as long as the two predictors disagree.
                self.received.binding.add(task.name[0])
                self._forecasts(self.cluster, now_s).forget(task.submitted.job)

    def return_to_controller(self, name: Name, why: str) -> None:
        """Return a task to the controller, because no process can be created for it here."""
        self._end(self.tasks[name], why, checkpoint=False)

    def mark_not_started(self, name: Name, why: str) -> None:
        """Return a task whose folder was removed before its process started."""
        task = self.tasks[name]
        why, task.end, task.step = task.end or why, "", Step.ALLOCATED
        self._end(task, why, checkpoint=False)

    def _end_overflows(self) -> None:
        """End the task that started last on each device whose memory is exceeded."""
        for device in range(self.cluster.devices):
            tasks = [
                task for task in self.tasks.values()
                if task.step is Step.STARTED
                and any(allocation.device == device for allocation in task.allocations)
            ]  # fmt: skip
            # The memory of a gang is spread about evenly over its devices.
            used_bytes = sum(
                task.observation.memory_bytes / len(task.allocations)
                for task in tasks
                if task.observation is not None
            )
            if used_bytes > _TOLERANCE * self.cluster.full_allocations[device].memory_bytes:
                last = min(tasks, key=lambda task: task.runtime_s)
                self._end(last, OVERFLOW, checkpoint=False)

    def _task(self, task: NodeTask) -> pb.Task:
        observation = task.observation
        phase = _PHASES.get(task.step, pb.TASK_RUNNING)
        if task.step is Step.STARTED and (task.end or task.paused):
            phase = pb.TASK_ENDING if task.end else pb.TASK_PAUSED
        row = pb.Task(
            job_id=task.name[0],
            attempt=task.order.attempt,
            phase=phase,
            allocations=write_allocations(task.allocations),
            slo_violated=task.slo_violated,
            reason=task.why,
            saved=task.order.done,
        )
        if observation is not None:
            row.done = self._done(task, observation)
            row.done_estimated = observation.done is None and row.done > 0
            row.saved = max(row.saved, observation.saved)
            row.ran_s = observation.ran_s
            if task.remaining_s is not None and observation.exit is None:
                row.remaining_s = task.remaining_s
            row.memory_bytes, row.peak_memory_bytes = (
                observation.memory_bytes,
                observation.peak_memory_bytes,
            )
            row.usage_milli = self.backend.usage.at(task.name[0], self._now_s)
            if observation.exit is not None:
                row.exit.CopyFrom(observation.exit)
                if task.end == OVERFLOW:
                    row.exit.out_of_memory, row.exit.requested = True, False
        return row


OVERFLOW = "the device's memory was exceeded, and it started last"
