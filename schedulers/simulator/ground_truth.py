"""How jobs really run: what the simulator goes by, and no policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from presage.schedulers.core.job import Job


class GroundTruth(Protocol):
    """What the world knows of every job."""

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Seconds that a whole job takes, alone on so many whole devices of a kind."""
        ...

    def compute_milli(self, job: Job, kind: str) -> int:
        """Thousandths of a device that each member keeps busy, alone; all where nobody measured."""
        ...

    def memory_bytes(self, job: Job, kind: str) -> int:
        """What each member takes of a device at its peak; 0 where nobody measured."""
        ...

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Whether a device with so much memory holds all of these jobs at their peaks."""
        ...

    def spread(self, job: Job, kind: str, gpus: int) -> float:
        """How many times as long a job takes on so many devices of several nodes, over one node."""
        ...

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> Sequence[float]:
        """Of jobs together on a device, each one's step time over that alone on all of it.

        Each member comes with the thousandths of the device's compute that it was granted.
        """
        ...


class Durations:
    """A trace that tells how long each job ran, and nothing else.

    Every kind of device is as fast as the one that was traced; a job takes what it was granted,
    and slows nobody down.
    """

    def __init__(self, duration_s: Mapping[str, float]) -> None:
        self._duration_s = duration_s

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Of a smaller gang than was traced: in proportion."""
        duration_s = self._duration_s[job.job_id]
        return duration_s if gpus == job.gpus else duration_s * job.gpus / gpus

    def compute_milli(self, job: Job, kind: str) -> int:
        """What its user asks for: nobody measured it."""
        return job.compute_milli

    def memory_bytes(self, job: Job, kind: str) -> int:
        """None: nothing is known of it."""
        return 0

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Always."""
        return True

    def spread(self, job: Job, kind: str, gpus: int) -> float:
        """As long: nobody measured it."""
        return 1.0

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> Sequence[float]:
        """None slows another down."""
        return (1.0,) * len(members)
