"""Progress of an elastic job, from the heartbeats of its workers, and its pace."""

from __future__ import annotations

import time
from dataclasses import dataclass

from presage.training.report import Progress

_LEAST_S = 2.0  # shortest measurement of a pace


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of a job at its present number of workers.

    Attributes
    ----------
    workers : int
        Number of workers.
    per_s : float
        Fraction of the whole job that is committed in a second.
    seconds : float
        Duration of the measurement, between two commits of the current generation.
    """

    workers: int
    per_s: float
    seconds: float


class JobProgress:
    """Progress of the workers of a job.

    Attributes
    ----------
    saved : float
        Fraction of the job in its last checkpoint.
    """

    def __init__(self) -> None:
        self.saved = 0.0
        self._last: dict[str, Progress] = {}
        self._generation = 0
        self._first: tuple[float, float] | None = None  # time and fraction of a commit
        self._furthest: tuple[float, float] | None = None

    def enter(self, worker_id: str, progress: Progress, generation: int) -> None:
        """Enter a heartbeat, received while a generation is the current one."""
        self._last[worker_id] = progress
        self.saved = max(self.saved, progress.saved)
        if generation != self._generation:
            self._generation, self._first, self._furthest = generation, None, None
        if progress.generation != generation or not generation:
            return
        at = (time.monotonic() - progress.age_s, progress.done)
        if self._first is None:
            self._first = self._furthest = at
        elif self._furthest is not None and progress.done > self._furthest[1]:
            self._furthest = at

    def of(self, worker_id: str) -> Progress:
        """Return what a worker reported last."""
        return self._last.get(worker_id, Progress())

    def pace(self, workers: int, generation: int) -> Pace | None:
        """Return the pace; None until it is measured for 2 seconds of the current generation."""
        if generation != self._generation or self._first is None or self._furthest is None:
            return None
        seconds = self._furthest[0] - self._first[0]
        if seconds < _LEAST_S:
            return None
        return Pace(workers, (self._furthest[1] - self._first[1]) / seconds, seconds)
