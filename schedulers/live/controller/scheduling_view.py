"""The cluster as policies see it: a ledger of nodes that are up, made of what their agents say.

It can be made anew from the book and the last reports at any time, and is, when nodes come and go.
A job that is leaving its node, or is on one that is not up, is not in it: nobody decides about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.compute_usage import Usage
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.live.controller.replayed_state import (
    LiveJob,
    LiveNode,
    ReplayedState,
    Stage,
)
from presage.schedulers.live.protocol.node_devices import node_name
from presage.schedulers.live.protocol.wire import write_prediction
from presage.schedulers.v1 import cluster_pb2 as pb


class SchedulingView:
    """A ledger of some nodes.

    Parameters
    ----------
    cluster : Cluster
        That :func:`presage.schedulers.live.protocol.node_devices.make_cluster` makes of the nodes.

    Attributes
    ----------
    ledger : Ledger
    nodes : dict of str to list
        Devices of each, as in the book.
    crowded : set of str
        Jobs that are at their node and have no room in the ledger: their agent sees to it.
    impossible : dict of str to str
        Of waiting jobs that no node that is up can ever hold, why.
    node_number : ndarray of shape (devices,)
        Number of the node of each device, in the order of ``nodes``.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Iterable[LiveNode],
        policy: Policy,
        forecasts: Forecasts,
    ) -> None:
        self.policy, self.forecasts = policy, forecasts
        self.nodes = {node.name: node.devices for node in nodes}
        self._devices: dict[str, range] = {}
        first = 0
        for name, devices in self.nodes.items():
            self._devices[name] = range(first, first + len(devices))
            first += len(devices)
        self.cluster = cluster
        self.ledger = make_ledger(cluster, policy, forecasts)
        self.progress, self.usage = Progress(), Usage()
        self._coming: dict[str, LiveJob] = {}
        self.crowded: set[str] = set()
        self.impossible: dict[str, str] = {}
        sizes = [len(devices) for devices in self.nodes.values()]
        self.node_number = np.repeat(np.arange(len(sizes)), sizes)  # of each device

    def has(self, node: str) -> bool:
        """Whether a node is in it."""
        return node in self._devices

    def node_of(self, device: int) -> str:
        """The node that a device is in."""
        return node_name(self.cluster.nodes[self.cluster.node_of[device]])

    def number_in_node(self, device: int) -> int:
        """A device's number in its node, from 0."""
        return device - self._devices[self.node_of(device)].start

    def on_node(self, allocation: Allocation) -> list[int]:
        """A grant, by the number of its device in its node."""
        return [
            self.number_in_node(allocation.device),
            allocation.compute_milli,
            allocation.memory_bytes,
        ]

    def device(self, node: str, device: int) -> int:
        """The number of a node's device in the cluster."""
        return self._devices[node][device]

    def job_of(self, live: LiveJob) -> Job:
        """As the ledger has it: without kinds that are too small for it."""
        return self.ledger.jobs.get(live.job_id) or self._of_large_kinds(live)

    def told_of(self, job: Job) -> list[pb.Prediction]:
        """What is foretold of a job now, on each kind that its user allows."""
        kinds = [kind for kind in self.cluster.kinds if not job.kinds or kind in job.kinds]
        return [write_prediction(kind, self.forecasts.prediction(job, kind)) for kind in kinds]

    def allocations_of(self, job_id: str) -> tuple[Allocation, ...]:
        """What a job holds of the cluster's devices; nothing of one that is not in the ledger."""
        if job_id not in self.ledger.jobs:
            return ()
        status = self.ledger.status(job_id)
        if status.phase is Phase.PAUSED:  # others have its compute meanwhile
            return tuple(allocation._replace(compute_milli=0) for allocation in status.allocations)
        return status.allocations

    # Jobs come, stand otherwise, and go -----------------------------------------------------

    def fill(
        self, book: ReplayedState, tasks: Mapping[str, Mapping[str, pb.Task]], now_s: float
    ) -> None:
        """Take in all jobs of a book; ``tasks`` are the last reports, by node and job."""
        for node in self._devices:
            self.settle(node, book.at_node.get(node, {}), tasks.get(node, {}), now_s)
        for job in book.jobs.values():
            if job.stage is Stage.WAITING:
                self.wait(job)

    def wait(self, live: LiveJob) -> None:
        """A job waits from now on, or again; it is taken in with all others that come."""
        self.forget(live.job_id)
        self._coming[live.job_id] = live

    def take_in(self) -> None:
        """Let those that wait come into the queue; forecasts are asked for all of them at once."""
        coming, self._coming = self._coming, {}
        self.forecasts.expect(live.submitted.job for live in coming.values())
        for live in coming.values():
            job = self._of_large_kinds(live)
            most = self.cluster.nodes_of(job.kinds).largest
            status = self._status(live, Phase.PENDING, (), live.since_s)
            why = self.ledger.sync(job, status, self._too_small(job))
            if not why and job.gpus > most:
                why = f"it needs {job.gpus} devices of one node; the largest that is up has {most}"
            if not why and live.small_bytes and not job.kinds:
                gib = live.small_bytes / 2**30
                why = f"it ran out of {gib:g} GiB of a device by itself; no larger one is up"
            if why:
                if live.job_id in self.ledger.jobs:
                    self.ledger.forget(live.job_id)
                self.impossible[live.job_id] = why

    def settle(
        self,
        node: str,
        jobs: Mapping[str, LiveJob],
        tasks: Mapping[str, pb.Task],
        now_s: float,
    ) -> bool:
        """Let the jobs of a node stand as its agent says; whether that is otherwise than before.

        Those that it has not told of stand as foreseen, as far as there is room; so do those that
        it is ending, as others may have been given what they had.
        """
        wanted = {
            job_id: self._told(job, tasks.get(job_id), now_s)
            for job_id, job in jobs.items()
            if job.stage is not Stage.LEAVING
        }
        there = {job_id for device in self._devices[node] for job_id in self.ledger.jobs_on(device)}
        crowded = self.crowded & wanted.keys()
        moved = any(
            not self._stands(job_id, wanted.get(job_id)) for job_id in there | wanted.keys()
        )
        if moved or crowded:
            for job_id in sorted(there | crowded):
                self.forget(job_id)
            for job_id in sorted(wanted, key=lambda job_id: _claim(tasks.get(job_id))):
                self._adopt(jobs[job_id], wanted[job_id])
        for job_id in wanted:
            self._note(jobs[job_id], tasks.get(job_id), now_s)
        return moved or crowded != self.crowded & wanted.keys()

    def forget(self, job_id: str) -> None:
        """A job is over, or is nothing to decide about for now."""
        self.crowded.discard(job_id)
        self.impossible.pop(job_id, None)
        self._coming.pop(job_id, None)
        if job_id in self.ledger.jobs:
            self.ledger.forget(job_id)

    def over(self, job: LiveJob) -> None:
        """A job that never comes back."""
        self.forget(job.job_id)
        self.progress.forget(job.job_id)
        self.usage.forget(job.job_id)
        self.forecasts.forget(job.submitted.job)  # one of its name may be another one

    # What is decided ------------------------------------------------------------------------

    def state(self, now_s: float) -> State:
        """To be decided on."""
        return State(self.ledger, now_s, self.progress, self.usage)

    # How it is kept -------------------------------------------------------------------------

    def _stands(self, job_id: str, wanted: JobStatus | None) -> bool:
        if job_id not in self.ledger.jobs:
            return wanted is None or job_id in self.crowded
        if wanted is None:
            return False
        stands = self.ledger.status(job_id)
        return (stands.phase, stands.allocations) == (wanted.phase, wanted.allocations)

    def _adopt(self, live: LiveJob, status: JobStatus) -> None:
        job = live.submitted.job
        if live.kinds:  # of which its node knows, too
            job = replace(job, kinds=tuple(live.kinds))
        # Without allocations, its node does not have its devices any more.
        if not status.allocations or self.ledger.sync(job, status):
            self.crowded.add(live.job_id)

    def _told(self, live: LiveJob, task: pb.Task | None, now_s: float) -> JobStatus:
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

    def _status(
        self, live: LiveJob, phase: Phase, allocations: tuple[Allocation, ...], since_s: float
    ) -> JobStatus:
        previous_devices: tuple[int, ...] = ()
        if phase is Phase.PENDING and live.node in self._devices:
            there = self._devices[live.node]  # it may have fewer by now
            previous_devices = tuple(
                there[row[0]] for row in live.allocations if row[0] < len(there)
            )
        return JobStatus(
            phase,
            since_s,
            allocations,
            attained_s=live.ran_s * live.submitted.job.gpus,
            starts=live.starts,
            overflows=live.overflows,
            waited_s=live.waited_s,
            first_start_s=math.inf if live.first_start_s is None else live.first_start_s,
            previous_devices=previous_devices,
            attained_at_start_s=live.ran_s * live.submitted.job.gpus,
        )

    def _too_small(self, job: Job) -> tuple[str, ...]:
        """Kinds that a job is foretold not to fit, where the policy minds and it can do without."""
        small = self.forecasts.too_small(job) if self.policy.needs.respects_memory else ()
        left = [kind for kind in job.kinds or self.cluster.kinds if kind not in small]
        return small if small and self.cluster.nodes_of(tuple(left)).largest >= job.gpus else ()

    def _of_large_kinds(self, live: LiveJob) -> Job:
        """A job as one for devices that are larger than those it ran out of by itself."""
        job, memory_of = live.submitted.job, self.cluster.memory_of
        if not live.small_bytes:
            return job
        kinds = job.kinds or tuple(memory_of)
        return replace(
            job, kinds=tuple(kind for kind in kinds if memory_of.get(kind, 0) > live.small_bytes)
        )

    def _note(self, live: LiveJob, task: pb.Task | None, now_s: float) -> None:
        if task is None:
            return
        job_id = live.job_id
        per_s = (task.done - live.saved) / task.ran_s if task.ran_s > 0 else 0.0
        self.progress.report(job_id, task.done, now_s, max(0.0, per_s), task.saved)
        self.usage.report(job_id, now_s, task.usage_milli)


def _claim(task: pb.Task | None) -> int:
    """Who has what it is said to have, if not all can: smallest first."""
    if task is None:
        return 2
    return 1 if task.phase == pb.TASK_ENDING else 0
