"""A job as the world knows it: how far it is, what of that is saved, and how fast it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from presage.schedulers.core.job import Job


@dataclass(slots=True)
class Run:
    """Of a job that was submitted, until it ends.

    Attributes
    ----------
    done : float
        Part of it that was done at ``since_s``; while it restarts, that is still to come.
    here : float
        Part of it that was done on the devices that it is on.
    pace_s : float
        Seconds that all of it would take as it runs now; infinite while it does not.
    saved : float
        Part of it that its last checkpoint holds.
    unsaved_s : float
        Running time since then.
    restart_s : float
        What it owes before it goes on, once it runs again.
    arrival : int
        Who came first to a device has its memory; 0 before its first start.
    overflows_at : float
        When it runs out of memory.
    timing : int
        Counts how often it was timed; an end that was foreseen by an earlier timing is none.
    """

    job: Job
    done: float = 0.0
    since_s: float = 0.0
    here: float = 0.0
    pace_s: float = math.inf
    saved: float = 0.0
    unsaved_s: float = 0.0
    restart_s: float = 0.0
    arrival: int = 0
    overflows_at: float = math.inf
    timing: int = 0

    def advance(self, now_s: float) -> None:
        """Count what it did until now, and the periodic checkpoints that it wrote."""
        ran_s = now_s - self.since_s
        if self.pace_s == math.inf or ran_s <= 0:
            return
        before, self.done = self.done, min(1.0, self.done + ran_s / self.pace_s)
        self.here += self.done - before
        self.since_s = now_s
        self.unsaved_s += ran_s
        cycle_s = self.job.checkpointing.interval_s + self.job.checkpointing.cost_s
        if self.unsaved_s >= cycle_s:
            self.unsaved_s %= cycle_s
            self.saved = self.done - self.unsaved_s / self.pace_s

    def hold(self, now_s: float) -> None:
        """It stands still where it is: what it owes of a restart, it still does."""
        if self.pace_s < math.inf:
            self.advance(now_s)
            self.restart_s = max(0.0, self.since_s - now_s)
            self._stop()

    def save(self, now_s: float) -> None:
        """It writes a checkpoint and lets go; that, and a restart, is paid when it runs again."""
        self.advance(now_s)
        self.saved, self.unsaved_s = self.done, 0.0
        costs = self.job.checkpointing
        self.restart_s = costs.cost_s + costs.restart_s if self.done else 0.0
        self._stop()

    def lose(self, now_s: float) -> None:
        """All since its last checkpoint is gone."""
        self.advance(now_s)
        self.done, self.unsaved_s = self.saved, 0.0
        self.restart_s = self.job.checkpointing.restart_s if self.done else 0.0
        self._stop()

    def begin(self, now_s: float) -> None:
        """It runs from now on, once it has restarted; somebody has yet to say at which pace."""
        self.since_s, self.restart_s = now_s + self.restart_s, 0.0

    def _stop(self) -> None:
        self.pace_s = self.overflows_at = math.inf
        self.timing += 1
