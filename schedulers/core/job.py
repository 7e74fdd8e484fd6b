"""Training job as schedulers see it: its request, without its true run time."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Checkpoint interval and costs of a job.

    Attributes
    ----------
    interval_s : float
        Run time between two checkpoints; work since the last one is lost if a device fails.
        Infinite for a job that writes no periodic checkpoints.
    cost_s : float
        Time to write a checkpoint, as before a preemption.
    restart_s : float
        Time from a restart to the first new step.
    """

    interval_s: float = math.inf
    cost_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise InvalidJobError(f"checkpoint interval_s={self.interval_s}, must be > 0")
        for field in ("cost_s", "restart_s"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise InvalidJobError(
                    f"checkpoint {field}={getattr(self, field)}, must be a finite number >= 0"
                )


NO_COST = Checkpointing()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """Training job as its user submits it.

    Attributes
    ----------
    submit_s : float
        Seconds since the beginning of the trace, or of the cluster.
    gpus : int
        Gang size: number of devices that the job needs at once, each with the same share.
    min_gpus, max_gpus : int
        Smallest and largest number of devices of an elastic job; 0 for as many as ``gpus``. It runs
        on any number within, and continues on the survivors if some of its devices fail.
    gpus_per_task : int
        Devices that each task has on one node, like a pod; only the policy ``gang`` applies it.
    node_limits : tuple of (str, int, int), or None
        Nodes that can run its tasks, with the largest number of tasks now and on an empty node, by
        resources other than devices (CPUs, taints). None for no limits. Only the policy ``gang``
        applies it.
    model : str
        Name of the trained model; "" if unknown.
    iterations : int
        Number of training steps; 0 if unknown.
    kinds : tuple of str
        Allowed kinds of devices; empty for all kinds.
    features : JobFeatures or None
        Input of forecasts; None if there is no graph of the model.
    compute_milli, memory_bytes : int
        Request on each device; 0 bytes for the same fraction of its memory as of its compute.
    latency_sensitive : bool
        Whether the job precedes best-effort jobs.
    priority : int
        Priority within the class; higher values precede.
    """

    job_id: str
    submit_s: float
    gpus: int = 1
    min_gpus: int = 0
    max_gpus: int = 0
    gpus_per_task: int = 1
    node_limits: tuple[tuple[str, int, int], ...] | None = None
    model: str = ""
    iterations: int = 0
    kinds: tuple[str, ...] = ()
    features: JobFeatures | None = None
    compute_milli: int = FULL_DEVICE_MILLI
    memory_bytes: int = 0
    latency_sensitive: bool = False
    priority: int = 0
    user: str = ""
    checkpointing: Checkpointing = NO_COST

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InvalidJobError(
                f"job {self.job_id!r}: gpus={self.gpus}, must be >= 1; "
                "drop CPU-only rows when loading the trace"
            )
        if not (math.isfinite(self.submit_s) and self.submit_s >= 0):
            raise InvalidJobError(
                f"job {self.job_id!r}: submit_s={self.submit_s}, must be a finite number >= 0; "
                "count seconds from the trace's beginning"
            )
        if not 0 <= self.min_gpus <= self.gpus:
            raise InvalidJobError(
                f"job {self.job_id!r}: min_gpus={self.min_gpus}, must be within 0 and gpus="
                f"{self.gpus}; 0 if the job is not elastic"
            )
        if self.max_gpus and self.max_gpus < self.gpus:
            raise InvalidJobError(
                f"job {self.job_id!r}: max_gpus={self.max_gpus}, must be >= gpus={self.gpus}; "
                "0 if the job does not grow beyond its request"
            )
        sizes = self.gpus, self.min_gpus, self.max_gpus
        if self.gpus_per_task < 1 or any(size % self.gpus_per_task for size in sizes):
            raise InvalidJobError(
                f"job {self.job_id!r}: gpus_per_task={self.gpus_per_task}, must divide gpus="
                f"{self.gpus}, min_gpus={self.min_gpus} and max_gpus={self.max_gpus}"
            )
        if not 0 < self.compute_milli <= FULL_DEVICE_MILLI:
            raise InvalidJobError(
                f"job {self.job_id!r}: compute_milli={self.compute_milli}, must be within 1 and "
                f"{FULL_DEVICE_MILLI}: thousandths of each device"
            )
        for field in ("memory_bytes", "iterations"):
            if getattr(self, field) < 0:
                raise InvalidJobError(
                    f"job {self.job_id!r}: {field}={getattr(self, field)}, must be >= 0; "
                    "0 if unknown"
                )

    @property
    def equivalence_class(self) -> Hashable:
        """Key that is equal for jobs with the same load on a device and on co-located jobs."""
        if self.features is not None:
            return self.features.job.job_id
        return self.model or (self.job_id,)

    @property
    def request(self) -> tuple[Hashable, ...]:
        """Key that is equal for jobs whose resource requests and class are the same."""
        return (
            self.gpus, self.min_gpus, self.max_gpus, self.gpus_per_task, self.node_limits,
            self.kinds, self.compute_milli, self.memory_bytes, self.latency_sensitive,
        )  # fmt: skip

    @property
    def workload_key(self) -> Hashable:
        """Key that is equal for jobs that fit on the same devices, by requests and by forecasts."""
        return (*self.request, self.features and self.features.job.job_id, self.model)

    def requested(self, full: Allocation) -> Allocation:
        """Return the requested share of a device, given the allocation of the full device."""
        memory_bytes = (
            self.memory_bytes or full.memory_bytes * self.compute_milli // FULL_DEVICE_MILLI
        )
        return Allocation(full.device, self.compute_milli, memory_bytes)

    @property
    def fewest_gpus(self) -> int:
        """Smallest number of devices on which the job runs."""
        return self.min_gpus or self.gpus

    @property
    def most_gpus(self) -> int:
        """Largest number of devices on which the job runs."""
        return self.max_gpus or self.gpus

    @property
    def is_elastic(self) -> bool:
        """Whether the job runs on different numbers of devices."""
        return bool(self.min_gpus or self.max_gpus) and self.fewest_gpus < self.most_gpus
