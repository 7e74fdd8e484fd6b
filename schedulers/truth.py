"""How jobs really run: what the simulator goes by, and no policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from presage.schedulers.grant import Grant
from presage.schedulers.job import Job


class Truth(Protocol):
    """What the world knows of every job."""

    def alone_s(self, job: Job, kind: str, gpus: int) -> float:
        """Seconds that a whole job takes, alone on so many whole devices of a kind."""
        ...

    def memory_bytes(self, job: Job, kind: str) -> int:
        """What each member takes of a device at its peak."""
        ...

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, Grant]]) -> tuple[float, ...]:
        """Of jobs together on a device, each one's step time over that alone on all of it."""
        ...


class Durations:
    """A trace that tells how long each job ran, and nothing else.

    Every kind of device is as fast as the one that was traced; a job takes what it was granted.
    """

    def __init__(self, duration_s: Mapping[str, float]) -> None:
        self._duration_s = duration_s

    def alone_s(self, job: Job, kind: str, gpus: int) -> float:
        """Of a smaller gang than was traced: in proportion."""
        duration_s = self._duration_s[job.job_id]
        return duration_s if gpus == job.gpus else duration_s * job.gpus / gpus

    def memory_bytes(self, job: Job, kind: str) -> int:
        """None: nothing is known of it."""
        return 0

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, Grant]]) -> tuple[float, ...]:
        """None slows another down."""
        return (1.0,) * len(members)
