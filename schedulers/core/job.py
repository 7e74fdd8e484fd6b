"""A job as a scheduler sees it; how long it really takes only the world knows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from presage.errors import InvalidJobError
from presage.features.job.job import JobFeatures
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a job keeps what it has done.

    Attributes
    ----------
    interval_s : float
        Running time from one checkpoint to the next; what was done since the last one is lost when
        a device fails. Infinite for a job that keeps nothing by itself.
    cost_s : float
        To write one, as before a preemption.
    restart_s : float
        From a start with earlier progress to the first new step.
    """

    interval_s: float = math.inf
    cost_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise InvalidJobError(f"checkpoint interval of {self.interval_s} s, must be > 0")
        for field in ("cost_s", "restart_s"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise InvalidJobError(
                    f"checkpoint {field}={getattr(self, field)}, must be a finite number >= 0"
                )


NO_COST = Checkpointing()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Job:
    """A training job, as its user submits it.

    Attributes
    ----------
    submit_s : float
        Seconds since the beginning of the trace, or of the cluster.
    gpus : int
        Gang size: so many devices at once, each with the same share.
    min_gpus : int
        It can run on as few; ``gpus`` unless it is elastic.
    gpus_per_task : int
        Devices that each of its tasks has on one node, as a pod does; only ``gang`` heeds it.
    node_limits : tuple of (str, int, int), or None
        Nodes that can take its tasks, how many at most now, and how many if they were empty, for
        what is not a matter of devices: CPUs, taints; None if all can. Only ``gang`` heeds it.
    model : str
        What it trains, "" where nobody said.
    iterations : int
        Steps that its user asks for; 0 where nobody said.
    kinds : tuple of str
        Kinds of devices that will do; any, if there are none.
    features : JobFeatures or None
        What its forecasts are made of; None where there is no graph of the model.
    compute_milli, memory_bytes : int
        What its user requests of each device; 0 bytes for as large a part of its memory as of its
        compute.
    latency_sensitive : bool
        Whether it goes before best-effort jobs.
    priority : int
        Higher goes first, within a class.
    """

    job_id: str
    submit_s: float
    gpus: int = 1
    min_gpus: int = 0
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
                f"{self.gpus}; 0 says that it is not elastic"
            )
        if (
            self.gpus_per_task < 1
            or self.gpus % self.gpus_per_task
            or (self.min_gpus % self.gpus_per_task)
        ):
            raise InvalidJobError(
                f"job {self.job_id!r}: gpus_per_task={self.gpus_per_task}, of which gpus="
                f"{self.gpus} and min_gpus={self.min_gpus} must be multiples"
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
                    "0 says that it is not known"
                )

    @property
    def equivalence_class(self) -> Hashable:
        """Equal for jobs that do the same to a device and their neighbours there, step by step."""
        if self.features is not None:
            return self.features.job.job_id
        return self.model or (self.job_id,)

    @property
    def request(self) -> tuple[Hashable, ...]:
        """Equal for jobs such that where one of them has what it asks for, so has the other."""
        return (
            self.gpus, self.min_gpus, self.gpus_per_task, self.node_limits, self.kinds,
            self.compute_milli, self.memory_bytes, self.latency_sensitive,
        )  # fmt: skip

    @property
    def workload_key(self) -> Hashable:
        """Equal for jobs such that where one of them fits, so does the other, also by forecasts."""
        return (*self.request, self.features and self.features.job.job_id, self.model)

    def requested(self, of: Allocation) -> Allocation:
        """What its user requests of a whole device."""
        memory_bytes = (
            self.memory_bytes or of.memory_bytes * self.compute_milli // FULL_DEVICE_MILLI
        )
        return Allocation(of.device, self.compute_milli, memory_bytes)

    @property
    def fewest_gpus(self) -> int:
        """Devices below which it does not run."""
        return self.min_gpus or self.gpus
