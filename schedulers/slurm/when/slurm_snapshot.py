"""State of a Slurm cluster as a snapshot from which simulations start. Pure: does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.slurm.when.slurm_queue import (
    RUNNING,
    STOPPED,
    WAITING,
    QueuedJob,
    SlurmNode,
    SlurmState,
)
from presage.schedulers.what_if.simulated_futures import HIGH_QUANTILE
from presage.schedulers.what_if.snapshot import Past, PastJob, Returning, Snapshot
from presage.system.text.units import counted

BACKFILL, IN_ORDER = "backfill:reserve=all", "fifo"  # policies like Slurm's schedulers
UNLIMITED_S = 365 * 86_400.0  # what Slurm plans for a job without a time limit
_CAPACITY = frozenset({"None", "Priority", "Resources", "BeginTime", ""})
_MEMORY_BYTES = FULL_DEVICE_MILLI  # of each device: Slurm has none, and the policy needs none
_MOST_LOG_S = math.log(1e12)  # of a run time; a note with a longer one is damaged
_ANY = "gpu"  # kind of GPUs without a type
_ASSUMPTIONS = (
    "jobs start in Slurm's present order, and only GPUs, partitions and time limits delay them: "
    "not CPUs, memory, licences, features of nodes, reservations or quotas",
)


@dataclass(frozen=True, slots=True)
class SlurmCopy:
    """Snapshot of a Slurm cluster.

    Attributes
    ----------
    forecaster : Forecaster
        Forecasts in the notes of the bridge.
    planned_by : Forecaster
        Time limits, by which Slurm plans.
    policy : str
        Policy of the simulator that decides like Slurm's scheduler.
    kinds : mapping of str to tuple of str
        Kinds of devices in the snapshot, by GRES type.
    """

    snapshot: Snapshot
    forecaster: Forecaster
    planned_by: Forecaster
    policy: str
    kinds: Mapping[str, tuple[str, ...]]

    def jobs_named(self, name: str) -> list[str]:
        """Return a job, or the tasks of an array that have not ended."""
        jobs = self.snapshot.jobs
        if name in jobs:
            return [name]
        return [job_id for job_id in jobs if job_id.partition("_")[0] == name]


class _RunTimes:
    """Forecaster that knows one run time of each job, on all devices."""

    def __init__(self, of_job: Mapping[str, RuntimePrediction]) -> None:
        self._of_job = of_job

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the run times; None if unknown."""
        return [self._of_job.get(job.job_id) for job, _ in requests]

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> list[list[float]]:
        """Return 1 for each job: shards of a GPU are taken as independent."""
        return [[1.0] * len(jobs) for _, jobs in requests]


def copy_slurm(state: SlurmState) -> SlurmCopy:
    """Return the snapshot of a Slurm cluster.

    Raises
    ------
    ConfigError
        No available node has GPUs.
    """
    reader = _Reader(state)
    known = {**reader.jobs, **{past.job.job_id: past.job for past in reader.past}}
    queued = {job.name: job for job in state.jobs if job.name in known}
    return SlurmCopy(
        reader.snapshot(),
        _RunTimes({name: found for name, job in queued.items() if (found := _forecast(job))}),
        _RunTimes({name: _planned(job) for name, job in queued.items()}),
        BACKFILL if state.has_backfill else IN_ORDER,
        reader.kinds,
    )


def _forecast(job: QueuedJob) -> RuntimePrediction | None:
    """Return the forecast in the note of a job, with its upper end at ``HIGH_QUANTILE``."""
    note = job.note
    if note is None or note.median_s is None or note.predicted_s is None:
        return None
    median_s, high_s = note.median_s, note.predicted_s
    if not (0 < median_s <= high_s < math.inf and 0.5 < note.quantile < 1):
        return None
    ratio = NormalDist().inv_cdf(HIGH_QUANTILE) / NormalDist().inv_cdf(note.quantile)
    log_high = math.log(median_s) + ratio * (math.log(high_s) - math.log(median_s))
    if log_high > _MOST_LOG_S:
        return None
    return RuntimePrediction(
        median_s,
        FULL_DEVICE_MILLI,
        _MEMORY_BYTES,
        high_s=max(median_s, math.exp(log_high)),
        release_id=note.release_id,
    )


def _planned(job: QueuedJob) -> RuntimePrediction:
    limit_s = UNLIMITED_S if math.isinf(job.limit_s) else job.limit_s
    return RuntimePrediction(limit_s, FULL_DEVICE_MILLI, _MEMORY_BYTES)


class _Reader:
    """Cluster and jobs of a state.

    Attributes
    ----------
    jobs : dict of str to Job
        Jobs that wait or run on available GPUs.
    past : list of PastJob
        Jobs that have ended.
    kinds : dict of str to tuple of str
        Kinds of devices by GRES type. Nodes of other partitions are of another kind.
    """

    def __init__(self, state: SlurmState) -> None:
        self._state, self._now_s = state, state.now_unix_s
        available = [node for node in state.nodes if node.is_available]
        self._by_kind: dict[tuple[str, frozenset[str]], list[SlurmNode]] = {}
        for node in available:
            for gres_type, count in node.gpus.items():
                if count:
                    self._by_kind.setdefault((gres_type, node.partitions), []).append(node)
        if not self._by_kind:
            raise ConfigError(
                "no available node has GPUs, so no start can be predicted; `sinfo --Node "
                "--Format=NodeList,Gres,StateComplete` has the reasons"
            )
        self._label = self._labels()
        self.kinds: dict[str, tuple[str, ...]] = {}
        for (gres_type, _), label in self._label.items():
            self.kinds[gres_type] = (*self.kinds.get(gres_type, ()), label)
        self.cluster = Cluster(tuple(self._nodes()))
        self._free = self._free_devices()
        self._shared: dict[str, dict[int, int]] = {}  # used thousandths by node and shared device
        self._unread = 0  # running jobs whose request of GPUs is not read
        self.jobs: dict[str, Job] = {}
        self._active: dict[str, JobStatus] = {}
        self._pending: dict[str, JobStatus] = {}
        self._closed: dict[str, str] = {}
        self._impossible: dict[str, str] = {}
        self._elsewhere: dict[str, str] = {}
        self._returning: list[Returning] = []
        running = [job for job in state.jobs if job.state in RUNNING]
        # Jobs whose request is not read come last: they get the devices that the others leave.
        for job in sorted(running, key=lambda job: (job.gpus is None, job.started_unix_s)):
            if job.gpus is None or job.gpus or job.shards:
                self._add_running(job)
        for job in sorted(state.jobs, key=_queue_order):
            if job.state in WAITING:
                self._add_waiting(job)
        self.past = list(self._ended_jobs())

    def snapshot(self) -> Snapshot:
        """Return the snapshot."""
        by_name = {job.name: job for job in self._state.jobs}
        limits_s = {name: by_name[name].own_limit_s for name in self.jobs}
        return Snapshot(
            self._now_s,
            self.cluster,
            self.jobs,
            self._active,
            self._pending,
            Progress(),
            returning=tuple(self._returning),
            impossible=self._impossible,
            elsewhere=self._elsewhere,
            closed=self._closed,
            limits_s={name: limit_s for name, limit_s in limits_s.items() if limit_s < math.inf},
            past=Past(self.past, self._now_s - self._state.ended_for_s),
            assumptions=tuple(self._assumptions()),
        )

    def _assumptions(self) -> Iterator[str]:
        yield from _ASSUMPTIONS
        if self._shared:
            yield "jobs on shards of one GPU do not slow each other down"
        if self._closed:
            verb = "waits" if len(self._closed) == 1 else "wait"
            yield (
                f"no start of {counted(len(self._closed), 'job')} that {verb} for more than GPUs"
            )
        if self._unread:
            yield (
                f"{counted(self._unread, 'running job')} whose request of GPUs is not read: all "
                "GPUs of their nodes that no other job has"
            )
        if stopped := sum(job.state in STOPPED for job in self._state.jobs):
            yield f"{counted(stopped, 'suspended job')} resumed now"
        if asleep := sum(node.is_available and node.is_powered_down for node in self._state.nodes):
            yield f"{counted(asleep, 'node')} powered up without delay"
        if lost := sum(not node.is_available for node in self._state.nodes):
            verb = "stays" if lost == 1 else "stay"
            yield f"{counted(lost, 'node')} on which no jobs start now {verb} so"

    def _labels(self) -> dict[tuple[str, frozenset[str]], str]:
        types = [gres_type for gres_type, _ in self._by_kind]
        return {
            (gres_type, partitions): (gres_type or _ANY)
            if types.count(gres_type) == 1
            else f"{gres_type or _ANY}@{'+'.join(sorted(partitions))}"
            for gres_type, partitions in self._by_kind
        }

    def _nodes(self) -> Iterator[Node]:
        for (gres_type, partitions), nodes in self._by_kind.items():
            label = self._label[gres_type, partitions]
            for node in nodes:
                name = node.name if len(node.gpus) == 1 else f"{node.name}/{gres_type or _ANY}"
                yield Node(name, node.gpus[gres_type], label, _MEMORY_BYTES)

    def _free_devices(self) -> dict[str, dict[str, list[int]]]:
        """Return the devices of each node by GRES type."""
        found: dict[str, dict[str, list[int]]] = {}
        first = 0
        for (gres_type, _), nodes in self._by_kind.items():
            for node in nodes:
                count = node.gpus[gres_type]
                found.setdefault(node.name, {})[gres_type] = list(range(first, first + count))
                first += count
        return found

    def _kinds_of(self, job: QueuedJob) -> tuple[str, ...]:
        """Return the kinds of devices that a job may get."""
        return tuple(
            label
            for (gres_type, partitions), label in self._label.items()
            if job.gpu_type in ("", gres_type) and partitions & set(job.partitions)
        )

    def _job(self, job: QueuedJob, gpus: int, kinds: tuple[str, ...], milli: int) -> Job:
        return Job(
            job.name,
            float(job.eligible_unix_s or job.submitted_unix_s),  # its arrival in the queue
            gpus=gpus,
            kinds=kinds,
            compute_milli=milli,
            model=job.note.features if job.note else "",
        )

    # ----------------------------------------------------------------------------------------

    def _add_running(self, job: QueuedJob) -> None:
        allocations = tuple(self._allocations(job))
        if not allocations:
            self.jobs[job.name] = self._job(job, 1, (), FULL_DEVICE_MILLI)
            self._elsewhere[job.name] = "it runs on nodes on which no jobs start now"
            return
        milli = allocations[0].compute_milli
        self.jobs[job.name] = self._job(job, len(allocations), self._kinds_of(job), milli)
        self._active[job.name] = JobStatus(
            Phase.RUNNING,
            self._now_s - job.used_s,
            allocations,
            starts=1,
            first_start_s=float(job.started_unix_s or self._now_s),
        )

    def _allocations(self, job: QueuedJob) -> Iterator[Allocation]:
        """Yield devices of a running job: which ones of its nodes makes no difference."""
        if job.gpus is None:
            self._unread += 1
            left = [of for name in job.on_nodes for of in self._free.get(name, {}).values()]
            for devices in left:
                yield from (Allocation(one, FULL_DEVICE_MILLI, _MEMORY_BYTES) for one in devices)
                devices.clear()
            return
        if not job.gpus:
            yield from self._shared_allocation(job)
            return
        count = len(job.on_nodes)
        for i, name in enumerate(job.on_nodes):
            total = job.gpus
            here = total // count + (i < total % count)
            for gres_type, devices in self._free.get(name, {}).items():
                while here and devices and job.gpu_type in ("", gres_type):
                    yield Allocation(devices.pop(0), FULL_DEVICE_MILLI, _MEMORY_BYTES)
                    here -= 1

    def _shared_allocation(self, job: QueuedJob) -> Iterator[Allocation]:
        nodes = {node.name: node for node in self._state.nodes}
        for name in job.on_nodes[:1]:
            gpus = sum(nodes[name].gpus.values()) if name in nodes else 0
            if not gpus or not nodes[name].shards:
                continue
            milli = min(FULL_DEVICE_MILLI, round(1000 * job.shards * gpus / nodes[name].shards))
            milli, used = max(1, milli), self._shared.setdefault(name, {})
            fitting = [one for one, of in used.items() if of + milli <= FULL_DEVICE_MILLI]
            if not fitting:
                left = next((of for of in self._free.get(name, {}).values() if of), None)
                if left is None:
                    continue
                fitting = [left.pop(0)]
            device = max(fitting, key=lambda one: used.get(one, 0))
            used[device] = used.get(device, 0) + milli
            yield Allocation(device, milli, milli)

    def _add_waiting(self, job: QueuedJob) -> None:
        kinds = self._kinds_of(job)
        self.jobs[job.name] = self._job(job, max(1, job.gpus or 0), kinds, FULL_DEVICE_MILLI)
        status = JobStatus(Phase.PENDING, float(job.eligible_unix_s or job.submitted_unix_s))
        if why := _closed_reason(job):
            self._closed[job.name] = why
        elif why := self._impossible_reason(job, kinds):
            self._impossible[job.name] = why
        elif job.eligible_unix_s > self._now_s:
            at_s, why = float(job.eligible_unix_s), "it begins then at the earliest"
            self._returning.append(Returning(self.jobs[job.name], status, at_s, 0.0, why))
        else:
            self._pending[job.name] = status

    def _impossible_reason(self, job: QueuedJob, kinds: tuple[str, ...]) -> str:
        gpus = job.gpus or 0
        where = f"partition {','.join(job.partitions)}"
        of_type = f" of type {job.gpu_type}" if job.gpu_type else ""
        if not kinds:
            return f"no available node of {where} has GPUs{of_type}"
        found = self.cluster.nodes_of(kinds)
        if gpus > found.devices:
            return f"it needs {gpus} GPUs{of_type}; {where} has {found.devices} available"
        if job.is_per_node and gpus > job.nodes * found.largest:
            return (
                f"it needs {gpus} GPUs{of_type} on {counted(job.nodes, 'node')}; the largest node "
                f"of {where} has {found.largest}"
            )
        return ""

    def _ended_jobs(self) -> Iterator[PastJob]:
        for job in self._state.jobs:
            if job.state in RUNNING | WAITING or not job.gpus:
                continue
            kinds = self._kinds_of(job)
            has_run = 0 < job.started_unix_s < job.ended_unix_s
            yield PastJob(
                self._job(job, job.gpus, kinds, FULL_DEVICE_MILLI),
                float(job.ended_unix_s),
                float(job.ended_unix_s - job.started_unix_s) if has_run else None,
                job.state == "COMPLETED",
                kinds[0] if len(kinds) == 1 else "",
            )


def _queue_order(job: QueuedJob) -> tuple[int, int, int, str]:
    return -job.priority, job.submitted_unix_s, len(job.name), job.name


def _closed_reason(job: QueuedJob) -> str:
    """Return what a waiting job waits for besides GPUs; "" for nothing."""
    if job.reason not in _CAPACITY:
        return f"it waits for more than GPUs: Slurm's reason is {job.reason}"
    if job.is_heterogeneous:
        return "it is a part of a heterogeneous job, whose parts start together"
    if job.gpus is None:
        return "its request of GPUs is not read: several types, or GPUs of sockets"
    if job.shards:
        return "it requests shards of a GPU, which are not simulated"
    if not job.gpus:
        return "it requests no GPUs, and only GPUs are simulated"
    return ""
