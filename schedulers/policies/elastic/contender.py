"""Jobs among which the policy ``elastic`` divides the devices."""

from __future__ import annotations

from dataclasses import dataclass

from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.policies.elastic.job_speed import JobSpeed
from presage.schedulers.policies.elastic.sizes import Demand


@dataclass(frozen=True, slots=True)
class Contender:
    """Running or waiting job.

    Attributes
    ----------
    own : list of int
        Devices that it has.
    kinds : tuple of tuple of str
        Sets of kinds of which it may get devices, the preferred one first.
    """

    job: Job
    status: JobStatus
    own: list[int]
    kinds: tuple[tuple[str, ...], ...]
    speed: JobSpeed
    demand: Demand

    @property
    def is_resizable(self) -> bool:
        """Whether the job runs on exclusive devices and may have another number of them."""
        return self.job.is_elastic and self.job.gpus_per_task == 1 and not self.job.node_limits

    @property
    def is_shareable(self) -> bool:
        """Whether it may have a part of a device: no urgent job, and none that ran out of memory.

        Shares change while a job runs, which only a resizable job can follow.
        """
        urgent = self.job.latency_sensitive
        return self.is_resizable and not urgent and not self.status.overflows
