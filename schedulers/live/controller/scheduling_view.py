"""The cluster as policies see it: a ledger of the available nodes, built from agents' reports.

It can be rebuilt from the replayed state and the last reports at any time. A node that becomes
unavailable stays in it, as a node that is down, while others like it are available: policies and
jobs see no difference then. A new node like others is added behind them. The view is rebuilt for
new kinds and sizes of nodes. A job that is leaving its node, or is on an unavailable node, is not
in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.backend import make_ledger, renew_queue
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.core.users.quota import NO_QUOTAS, Quotas
from presage.schedulers.live.controller.elastic.growth import SizeLimit, may_grow_s
from presage.schedulers.live.controller.elastic.leader_report import MIN_MEASURED_S, LeaderReport
from presage.schedulers.live.controller.journal.records import (
    Ended,
    MemberEnded,
    Placed,
    PriorityChanged,
    Record,
    Requeued,
    Resized,
    Started,
    Stopping,
    Submitted,
)
from presage.schedulers.live.controller.replayed_state import (
    LiveJob,
    LiveNode,
    ReplayedState,
    Stage,
)
from presage.schedulers.live.protocol.node_devices import make_parts, node_name
from presage.schedulers.live.protocol.wire import write_prediction
from presage.schedulers.v1 import cluster_pb2 as pb


class SchedulingView:
    """Ledger of the available nodes, with the jobs on them and the pending jobs.

    Parameters
    ----------
    cluster : Cluster
        The nodes, as :func:`presage.schedulers.live.protocol.node_devices.make_cluster` makes them.
    outages : OutageHistory, optional
        Outages of devices so far, which policies read.
    withdrawn : mapping of str to mapping of int to str, optional
        By node, why devices get no jobs.
    unavailable : collection of str, optional
        Nodes that get no jobs.
    quotas : Quotas, optional
        What users may hold.

    Attributes
    ----------
    ledger : Ledger
    nodes : dict of str to list
        Devices of each node, as in the replayed state.
    device_ids : tuple of str
        Id of each device in the history of outages.
    unplaced : set of str
        Jobs on a node whose devices are not free in the ledger; their agent resolves the conflict.
    unschedulable : dict of str to str
        Why no available node can ever run a pending job, by job id.
    node_number : ndarray of shape (devices,)
        Number of the node of each device, in the order of ``nodes``.
    withdrawn : dict of int to str
        Why devices get no jobs, by number in the cluster.
    quotas : Quotas
        What users may hold.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Iterable[LiveNode],
        policy: Policy,
        forecasts: Forecasts,
        outages: OutageHistory | None = None,
        withdrawn: Mapping[str, Mapping[int, str]] | None = None,
        unavailable: Iterable[str] = (),
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        nodes = tuple(nodes)
        self.policy, self.forecasts, self.quotas = policy, forecasts, quotas
        self.device_ids = tuple(one for node in nodes for one in node.history_ids)
        self.nodes = {node.name: node.devices for node in nodes}
        self._devices: dict[str, range] = {}
        first = 0
        for name, devices in self.nodes.items():
            self._devices[name] = range(first, first + len(devices))
            first += len(devices)
        self.cluster = cluster
        self.ledger = make_ledger(
            cluster, policy, forecasts, outages=outages, device_ids=self.device_ids, quotas=quotas
        )
        self.withdrawn: dict[int, str] = {}
        for node, reasons in (withdrawn or {}).items():
            self._withdraw(node, reasons)
        self._down: set[str] = set()
        # By kind and number of devices, the parts of nodes that are available.
        self._available = Counter((part.kind, part.devices) for part in cluster.nodes)
        for node in unavailable:
            self._set_available(node, is_available=False)
        self._most_gpus = 0  # of a job
        self.progress, self.usage = Progress(), Usage()
        self._new: dict[str, LiveJob] = {}
        self._elastic: set[str] = set()  # running jobs that are at several nodes
        self._limits: dict[str, SizeLimit] = {}
        self._capacities: dict[str, int] = {}  # most workers of elastic jobs, by their leaders
        self.unplaced: set[str] = set()
        self.unschedulable: dict[str, str] = {}
        sizes = [len(devices) for devices in self.nodes.values()]
        self.node_number = np.repeat(np.arange(len(sizes)), sizes)  # of each device

    def has_node(self, node: str) -> bool:
        """Return whether a node is available."""
        return node in self._devices and node not in self._down

    @property
    def available_nodes(self) -> int:
        """Number of available nodes."""
        return len(self.nodes) - len(self._down)

    def has_many_lost_nodes(self, state: ReplayedState) -> bool:
        """Return whether more nodes are lost than available, so that the view should be rebuilt."""
        there = (state.nodes.get(name) for name in self._down)
        return sum(node is None or node.lost for node in there) > self.available_nodes

    def has_devices_of(self, node: LiveNode) -> bool:
        """Return whether a node is in the cluster, available or not, with the same devices."""
        there = self._devices.get(node.name)
        if there is None or self.nodes[node.name] != node.devices:
            return False
        return self.device_ids[there.start : there.stop] == tuple(node.history_ids)

    def can_add(self, node: LiveNode) -> bool:
        """Return whether a node is new, and of kinds and sizes that other nodes here have."""
        if node.name in self._devices:
            return False
        memory_of = self.cluster.memory_of
        return all(
            (part.kind, part.devices) in self._available
            and part.memory_bytes == memory_of[part.kind]
            for part in make_parts(node.name, node.kinds)
        )

    def add_nodes(self, nodes: Sequence[LiveNode], state: ReplayedState) -> None:
        """Add available nodes, for which :meth:`can_add` is true, without jobs.

        Jobs for which there were too few devices are pending again.
        """
        parts = [part for node in nodes for part in make_parts(node.name, node.kinds)]
        self.cluster = self.cluster.extended(parts)
        self._available.update((part.kind, part.devices) for part in parts)
        self.device_ids = (*self.device_ids, *(one for node in nodes for one in node.history_ids))
        self.ledger.extend(self.cluster, self.device_ids)
        first, sizes = len(self.node_number), [len(node.devices) for node in nodes]
        numbers = np.repeat(np.arange(len(sizes)) + len(self.nodes), sizes)
        self.node_number = np.concatenate((self.node_number, numbers))
        for node, size in zip(nodes, sizes, strict=True):
            self.nodes[node.name] = node.devices
            self._devices[node.name] = range(first, first + size)
            first += size
        unschedulable, self.unschedulable = self.unschedulable, {}
        for job_id in unschedulable:
            self._note_new(state.jobs[job_id])

    @property
    def is_representative(self) -> bool:
        """Whether policies may use the cluster as if all of its nodes were available.

        That is so if each unavailable node has available ones of its kind and size, and those
        have enough devices for any job of the view.
        """
        if not self._down:
            return True
        left = Counter[str]()
        for (kind, devices), parts in self._available.items():
            if parts <= 0:
                return False
            left[kind] += parts * devices
        return min(left.values()) >= self._most_gpus

    def available_devices(self) -> NDArray[np.bool_]:
        """Return a mask of the devices of available nodes, of shape (devices,)."""
        mask = np.ones(self.cluster.devices, bool)
        for node in self._down:
            mask[self._devices[node]] = False
        return mask

    def node_of(self, device: int) -> str:
        """Return the name of a device's node."""
        return node_name(self.cluster.nodes[self.cluster.node_of[device]])

    def number_in_node(self, device: int) -> int:
        """Return a device's number in its node, from 0."""
        return device - self._devices[self.node_of(device)].start

    def node_allocation(self, allocation: Allocation) -> list[int]:
        """Return an allocation with the number of its device in its node."""
        return [
            self.number_in_node(allocation.device),
            allocation.compute_milli,
            allocation.memory_bytes,
        ]

    def device(self, node: str, device: int) -> int:
        """Return the number in the cluster of a node's device."""
        return self._devices[node][device]

    @property
    def new_jobs(self) -> list[LiveJob]:
        """Waiting jobs that are not in the ledger yet."""
        return list(self._new.values())

    def suited_job(self, live: LiveJob) -> Job:
        """Return a job without the kinds of devices that are too small for it."""
        return self.ledger.jobs.get(live.job_id) or self._without_small_kinds(live)

    def predictions(self, job: Job) -> list[pb.Prediction]:
        """Return the current predictions of a job on each kind that its user allows."""
        kinds = [kind for kind in self.cluster.kinds if not job.kinds or kind in job.kinds]
        return [write_prediction(kind, self.forecasts.prediction(job, kind)) for kind in kinds]

    def allocations_of(self, job_id: str) -> tuple[Allocation, ...]:
        """Return the allocations of a job; none for a job that is not in the ledger."""
        if job_id not in self.ledger.jobs:
            return ()
        status = self.ledger.status(job_id)
        if status.phase is Phase.PAUSED:  # its compute is free for others
            return tuple(allocation._replace(compute_milli=0) for allocation in status.allocations)
        return status.allocations

    # Changes of jobs ------------------------------------------------------------------------

    def load(
        self, state: ReplayedState, tasks: Mapping[str, Mapping[str, pb.Task]], now_s: float
    ) -> None:
        """Enter all jobs of a replayed state; ``tasks`` are the last reports, by node and job."""
        if self.ledger.gate is not None:
            self.ledger.gate.elsewhere_milli = partial(self._elsewhere_milli, state)
        for node in self._devices:
            if node not in self._down:
                self.sync_node(node, state.at_node.get(node, {}), tasks.get(node, {}), now_s)
        for job in state.jobs.values():
            if job.stage is Stage.WAITING:
                self.enqueue(job, state)
            elif job.members:
                self.sync_elastic(job, now_s)

    def update_node(
        self,
        node: LiveNode,
        state: ReplayedState,
        tasks: Mapping[str, pb.Task],
        now_s: float,
        *,
        is_available: bool,
        withdrawn: Mapping[int, str],
    ) -> None:
        """Enter a node and its jobs again, after a change of its availability or its devices.

        Parameters
        ----------
        tasks : mapping of str to Task
            Last reported tasks of the node.
        withdrawn : mapping of int to str
            Why devices of the node get no jobs.
        """
        name, here = node.name, state.at_node.get(node.name, {})
        there = {one for device in self._devices[name] for one in self.ledger.jobs_on(device)}
        jobs = sorted(there | here.keys())
        for job_id in jobs:
            self.forget(job_id)
        self._set_available(name, is_available=is_available)
        self._withdraw(name, withdrawn)
        if is_available:
            self.sync_node(name, here, tasks, now_s)
        for job_id in jobs:  # they continue with their workers on other nodes
            if state.jobs[job_id].members:
                self.sync_elastic(state.jobs[job_id], now_s)

    def _set_available(self, node: str, *, is_available: bool) -> None:
        """Mark a node without jobs as available or not."""
        if is_available == (node not in self._down):
            return
        there = self._devices[node]
        for part in range(
            self.cluster.node_of[there.start], self.cluster.node_of[there.stop - 1] + 1
        ):
            size = self.cluster.nodes[part].kind, self.cluster.nodes[part].devices
            if is_available:
                self.ledger.repair(part, 0.0, is_outage=False)
            else:  # the history has the outages already
                self.ledger.fail(part, 0.0, is_outage=False)
            self._available[size] += 1 if is_available else -1
        self._down ^= {node}

    def _withdraw(self, node: str, reasons: Mapping[int, str]) -> None:
        """Mark the devices of a node without jobs as withdrawn or not."""
        for number, device in enumerate(self._devices[node]):
            if number not in reasons and self.withdrawn.pop(device, None) is not None:
                self.ledger.repair(self.cluster.node_of[device], 0.0, device, is_outage=False)
        for number, reason in reasons.items():
            device = self.device(node, number)
            self.ledger.fail(self.cluster.node_of[device], 0.0, device, is_outage=False)
            self.withdrawn[device] = reason

    def _elsewhere_milli(self, state: ReplayedState, user: str) -> int:
        """Return what jobs of a user hold that leave their nodes, or are on unavailable ones."""
        holding = () if self.ledger.gate is None else self.ledger.gate.holding(user)
        here_milli = sum(state.jobs[job_id].staying_milli for job_id in holding)
        return max(0, state.users.use.held_milli(user) - here_milli)

    def quota_reason(self, job_id: str) -> str:
        """Return why a waiting job is not in the queue because of a quota; "" if it is not that."""
        job, gate = self.ledger.jobs.get(job_id), self.ledger.gate
        return "" if job is None or gate is None else gate.closed_reason(job)

    def follow(self, record: Record, state: ReplayedState) -> None:
        """Follow a record that was applied to the replayed state."""
        if self.ledger.gate is not None:
            self.ledger.gate.review()
        match record:
            case Submitted() | Requeued():
                self.enqueue(state.jobs[record.job_id], state)
            case PriorityChanged() if record.job_id in self.ledger.jobs:
                self.enqueue(state.jobs[record.job_id], state)
            case Ended():
                self.finish(state.jobs[record.job_id])
            case Stopping():
                self.forget(record.job_id)
            case Placed() | Started() | Resized() | MemberEnded():
                job = state.jobs[record.job_id]
                if job.members or job.leaving:
                    self.sync_elastic(job, record.time_s)

    def renew_forecasts(self, forecasts: Forecasts, state: ReplayedState) -> None:
        """Replace the forecasts, on which only the pending jobs and their order depend."""
        closed = () if self.ledger.gate is None else self.ledger.gate.closed()
        queued = [job.job_id for job in (*self.ledger.pending, *closed)]
        pending = [*queued, *self.unschedulable]
        for job_id in pending:
            self.forget(job_id)
        self.forecasts = forecasts
        renew_queue(self.ledger, self.policy, forecasts)
        for job_id in pending:
            self._note_new(state.jobs[job_id])

    def enqueue(self, live: LiveJob, state: ReplayedState) -> None:
        """Note a job that waits; :meth:`enter_new_jobs` enters it with all others.

        It does not go on meanwhile, and will continue from its last checkpoint. A closed job is
        not in the queue.
        """
        self.forget(live.job_id)
        self.progress.report(live.job_id, live.saved, live.since_s, 0.0, live.saved)
        if not state.gates.closed_reason(live):
            self._note_new(live)

    def review(self, live: LiveJob, *, is_open: bool) -> None:
        """Enter a waiting job into the queue once it is open, and remove it once it is closed.

        A closed job is not unschedulable either: a node that joins would enter it again.
        """
        is_queued = live.job_id in self._new or live.job_id in self.ledger.jobs
        if not is_open and (is_queued or live.job_id in self.unschedulable):
            self.forget(live.job_id)
        elif is_open and not is_queued:
            self._note_new(live)

    def _note_new(self, live: LiveJob) -> None:
        self._new[live.job_id] = live
        self._most_gpus = max(self._most_gpus, live.submitted.job.most_gpus)

    def enter_new_jobs(self) -> None:
        """Enter the noted jobs into the queue, with one request for forecasts of all of them."""
        new, self._new = self._new, {}
        self.forecasts.expect(live.submitted.job for live in new.values())
        for live in new.values():
            job = self._without_small_kinds(live)
            largest = self.cluster.nodes_of(job.kinds).largest
            status = self._status(live, Phase.PENDING, (), live.since_s)
            why = self.ledger.sync(job, status, self._too_small(job))
            if not why and job.gpus > largest and not job.is_elastic:
                why = f"it needs {job.gpus} devices of one node; the largest has {largest}"
            if not why and live.small_bytes and not job.kinds:
                gib = live.small_bytes / 2**30
                why = f"it ran out of {gib:g} GiB of a device by itself; no larger one is available"
            if why:
                if live.job_id in self.ledger.jobs:
                    self.ledger.forget(live.job_id)
                self.unschedulable[live.job_id] = why

    def sync_node(
        self,
        node: str,
        jobs: Mapping[str, LiveJob],
        tasks: Mapping[str, pb.Task],
        now_s: float,
    ) -> bool:
        """Enter the jobs of a node as its agent reports them; return whether anything changed.

        Jobs that the agent has not reported yet are entered as planned, as far as their devices are
        free. So are jobs that it is ending, since others may have their devices already.
        """
        jobs = {job_id: job for job_id, job in jobs.items() if not job.is_elastic}
        observed = {
            job_id: self._observed_status(job, tasks.get(job_id), now_s)
            for job_id, job in jobs.items()
            if job.stage is not Stage.LEAVING
        }
        there = {job_id for device in self._devices[node] for job_id in self.ledger.jobs_on(device)}
        there -= self._elastic
        unplaced = self.unplaced & observed.keys()
        moved = any(
            not self._is_current(job_id, observed.get(job_id)) for job_id in there | observed.keys()
        )
        if moved or unplaced:
            for job_id in sorted(there | unplaced):
                self.forget(job_id)
            for job_id in sorted(observed, key=lambda job_id: _sync_order(tasks.get(job_id))):
                self._adopt(jobs[job_id], observed[job_id])
        for job_id in observed:
            self._record_progress(jobs[job_id], tasks.get(job_id), now_s)
        return moved or unplaced != self.unplaced & observed.keys()

    def sync_elastic(self, live: LiveJob, now_s: float) -> bool:
        """Enter an elastic job on the devices of its workers; return whether anything changed.

        Workers that are to leave are not part of it: others may have their devices already.
        """
        job_id, observed = live.job_id, self._elastic_status(live, now_s)
        is_here = live.stage in (Stage.PLACED, Stage.RUNNING) and bool(observed.allocations)
        limit = self._limit(live, len(observed.allocations), now_s) if is_here else None
        is_limited = self._limits.get(job_id) == limit
        if is_here:  # also if the ledger has it from the decision: its nodes do not report it
            self._elastic.add(job_id)
        if self._is_current(job_id, observed if is_here else None) and is_limited:
            return False
        self.forget(job_id)
        if is_here:
            self._elastic.add(job_id)
            self._adopt(live, observed, limit)
        return True

    def review_limits(self, state: ReplayedState, now_s: float) -> float:
        """Lift the limits of sizes that are over; return when the next one is, in seconds."""
        for job_id, limit in list(self._limits.items()):
            if now_s >= limit.until_s:
                self.sync_elastic(state.jobs[job_id], now_s)
        return min((limit.until_s for limit in self._limits.values()), default=math.inf)

    def _limit(self, live: LiveJob, size: int, now_s: float) -> SizeLimit | None:
        """Return the limit of the size of an elastic job; None if it may have any size."""
        is_entire = all(self._has_device(one.node, one.device) for one in live.members)
        if live.is_complete or not is_entire:
            return SizeLimit(size, size)
        fewest, until_s = live.submitted.job.fewest_gpus, may_grow_s(live)
        if now_s < until_s:
            return SizeLimit(min(size, fewest), size, until_s)
        capacity = self._capacities.get(live.job_id, live.submitted.job.most_gpus)
        if capacity < live.submitted.job.most_gpus:
            return SizeLimit(min(capacity, fewest), capacity)
        return None

    def _has_device(self, node: str, device: int) -> bool:
        return self.has_node(node) and device < len(self._devices[node])

    def record_elastic_progress(
        self, live: LiveJob, report: LeaderReport, paces_s: Mapping[tuple[int, int], float]
    ) -> None:
        """Enter the progress of an elastic job, and its measured run times by size.

        Its leader knows the progress of a checkpoint only once the workers have read it.
        """
        if report.capacity != self._capacities.get(live.job_id):
            self._capacities[live.job_id] = report.capacity
            self.sync_elastic(live, report.time_s)
        per_s = report.per_s if report.measured_s >= MIN_MEASURED_S else 0.0
        done, saved = max(report.done, live.saved), max(report.saved, live.saved)
        self.progress.report(live.job_id, done, report.time_s, per_s, saved)
        for (gpus, nodes), pace_s in paces_s.items():
            self.progress.report_size(live.job_id, gpus, nodes, pace_s)

    def forget(self, job_id: str) -> None:
        """Remove a job about which there is nothing to decide now."""
        self.unplaced.discard(job_id)
        self.unschedulable.pop(job_id, None)
        self._new.pop(job_id, None)
        self._limits.pop(job_id, None)
        self._elastic.discard(job_id)
        if job_id in self.ledger.jobs:
            self.ledger.forget(job_id)

    def finish(self, job: LiveJob) -> None:
        """Remove a job that has ended."""
        self.forget(job.job_id)
        self._capacities.pop(job.job_id, None)
        self.progress.forget(job.job_id)
        self.usage.forget(job.job_id)
        self.forecasts.forget(job.submitted.job)  # a later job may have its name

    def state(self, now_s: float) -> State:
        """Return the state for a decision."""
        return State(self.ledger, now_s, self.progress, self.usage)

    def _is_current(self, job_id: str, observed: JobStatus | None) -> bool:
        if job_id not in self.ledger.jobs:
            return observed is None or job_id in self.unplaced
        if observed is None:
            return False
        current = self.ledger.status(job_id)
        return (current.phase, current.allocations) == (observed.phase, observed.allocations)

    def _adopt(self, live: LiveJob, status: JobStatus, limit: SizeLimit | None = None) -> None:
        job = live.submitted.job
        self._most_gpus = max(self._most_gpus, job.most_gpus)
        if limit is not None:
            self._limits[live.job_id] = limit
            job = limit.apply(job)
        if live.kinds:  # its node knows the narrowed kinds, too
            job = replace(job, kinds=tuple(live.kinds))
        # Without allocations, its node does not have its devices any more.
        if not status.allocations or self.ledger.sync(job, status):
            self.unplaced.add(live.job_id)

    def _observed_status(self, live: LiveJob, task: pb.Task | None, now_s: float) -> JobStatus:
        first = self._devices[live.node].start
        rows = (
            [[g.device, g.compute_milli, g.memory_bytes] for g in task.allocations] if task else []
        )
        there = len(self._devices[live.node])
        allocations = tuple(
            Allocation(row[0] + first, row[1], row[2])
            for row in rows or live.allocations
            if row[0] < there
        )
        paused = task is not None and task.phase == pb.TASK_PAUSED
        phase = Phase.PAUSED if paused else Phase.RUNNING
        since_s = live.since_s if live.stage is Stage.RUNNING else now_s
        return self._status(live, phase, allocations, since_s)

    def _elastic_status(self, live: LiveJob, now_s: float) -> JobStatus:
        allocations = tuple(
            Allocation(self.device(one.node, one.device), one.compute_milli, one.memory_bytes)
            for one in live.members
            if self._has_device(one.node, one.device)
        )
        since_s = live.resized_s if live.stage is Stage.RUNNING else now_s
        return self._status(live, Phase.RUNNING, allocations, since_s)

    def _status(
        self, live: LiveJob, phase: Phase, allocations: tuple[Allocation, ...], since_s: float
    ) -> JobStatus:
        previous_devices: tuple[int, ...] = ()
        if phase is Phase.PENDING and live.node in self._devices:
            there = self._devices[live.node]  # it may have fewer by now
            previous_devices = tuple(
                there[row[0]] for row in live.allocations if row[0] < len(there)
            )
        attained_s = live.ran_s * live.submitted.job.gpus
        if live.is_elastic:
            attained_s = live.attained_s
        return JobStatus(
            phase,
            since_s,
            allocations,
            attained_s=attained_s,
            starts=live.starts,
            overflows=live.overflows,
            waited_s=live.waited_s,
            first_start_s=math.inf if live.first_start_s is None else live.first_start_s,
            previous_devices=previous_devices,
            attained_at_start_s=attained_s,
        )

    def _too_small(self, job: Job) -> tuple[str, ...]:
        """Return the kinds that are predicted to be too small, if the job can run without them."""
        small = self.forecasts.too_small(job) if self.policy.needs.respects_memory else ()
        left = [kind for kind in job.kinds or self.cluster.kinds if kind not in small]
        return small if small and self.cluster.nodes_of(tuple(left)).largest >= job.gpus else ()

    def _without_small_kinds(self, live: LiveJob) -> Job:
        """Return a job restricted to larger devices than those it ran out of solo."""
        job, memory_of = live.submitted.job, self.cluster.memory_of
        if not live.small_bytes:
            return job
        kinds = job.kinds or tuple(memory_of)
        return replace(
            job, kinds=tuple(kind for kind in kinds if memory_of.get(kind, 0) > live.small_bytes)
        )

    def _record_progress(self, live: LiveJob, task: pb.Task | None, now_s: float) -> None:
        if task is None:
            return
        job_id = live.job_id
        per_s = (task.done - live.saved) / task.ran_s if task.ran_s > 0 else 0.0
        self.progress.report(job_id, task.done, now_s, max(0.0, per_s), task.saved)
        self.usage.report(job_id, now_s, task.usage_milli)


def _sync_order(task: pb.Task | None) -> int:
    """Return the order in which tasks get their devices if they conflict: smallest first."""
    if task is None:
        return 2
    return 1 if task.phase == pb.TASK_ENDING else 0
