"""Ground truth of the simulator: true run times and slowdowns, hidden from policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from presage.schedulers.core.job import Job


class GroundTruth(Protocol):
    """True behaviour of every job."""

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Return the run time of a whole job on ``gpus`` exclusive devices of a kind."""
        ...

    def compute_milli(self, job: Job, kind: str) -> int:
        """Return the milli-devices that each member uses in a solo run; 1000 if not measured."""
        ...

    def memory_bytes(self, job: Job, kind: str) -> int:
        """Return the peak memory of each member; 0 if not measured."""
        ...

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Return whether a device with ``memory_bytes`` holds all members at their peaks."""
        ...

    def spread(self, job: Job, kind: str, gpus: int, nodes: int) -> float:
        """Return the run time on ``gpus`` devices of ``nodes`` nodes over that on one node."""
        ...

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> Sequence[float]:
        """Return each co-located job's step time over that on an exclusive device.

        Each member comes with its allocated compute in milli-devices.
        """
        ...


class TraceDurations:
    """Ground truth from the durations of a trace only.

    Every kind of device is as fast as the traced one. A job uses its allocation and does not slow
    co-located jobs down.
    """

    def __init__(self, duration_s: Mapping[str, float]) -> None:
        self._duration_s = duration_s

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Return the traced duration, scaled in proportion for another gang size."""
        duration_s = self._duration_s[job.job_id]
        return duration_s if gpus == job.gpus else duration_s * job.gpus / gpus

    def compute_milli(self, job: Job, kind: str) -> int:
        """Return the compute that the job requests."""
        return job.compute_milli

    def memory_bytes(self, job: Job, kind: str) -> int:
        """Return 0: memory is unknown."""
        return 0

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Return True."""
        return True

    def spread(self, job: Job, kind: str, gpus: int, nodes: int) -> float:
        """Return 1.0: not measured."""
        return 1.0

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> Sequence[float]:
        """Return 1.0 for every member."""
        return (1.0,) * len(members)
