"""Progress of one simulated job: what is done, what is checkpointed, and how fast it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from presage.schedulers.core.job import Job


@dataclass(slots=True)
class Run:
    """State of a submitted job until it ends.

    Attributes
    ----------
    progress : float
        Fraction of the job that was done at ``since_s``, which lies ahead while it restarts.
    progress_here : float
        Fraction of the job that was done on its current devices.
    pace_s : float
        Seconds that the whole job would take at its current speed; infinite while it is stopped.
    saved_progress : float
        Fraction of the job that its last checkpoint holds.
    unsaved_s : float
        Running time since the last checkpoint.
    restart_s : float
        Delay before the job makes progress again once it resumes.
    arrival : int
        Order of arrival on its devices: earlier jobs keep their memory. 0 before the first start.
    overflows_at : float
        Time at which the job runs out of memory; infinite if it does not.
    ready_s : float
        Time at which the workers on the new devices of an elastic job train.
    interval_s : float
        Time between periodic checkpoints; infinite for none.
    restarting_s : float
        Length of the restart since the job last resumed.
    timing : int
        Number of times that the end was computed. Ends from earlier timings are outdated.
    """

    job: Job
    progress: float = 0.0
    since_s: float = 0.0
    progress_here: float = 0.0
    pace_s: float = math.inf
    saved_progress: float = 0.0
    unsaved_s: float = 0.0
    restart_s: float = 0.0
    arrival: int = 0
    overflows_at: float = math.inf
    ready_s: float = 0.0
    interval_s: float = math.inf
    restarting_s: float = 0.0
    timing: int = 0

    def __post_init__(self) -> None:
        self.interval_s = self.job.checkpointing.interval_s

    def advance(self, now_s: float) -> None:
        """Add the progress and the periodic checkpoints made until ``now_s``."""
        ran_s = now_s - self.since_s
        if self.pace_s == math.inf or ran_s <= 0:
            return
        before, self.progress = self.progress, min(1.0, self.progress + ran_s / self.pace_s)
        self.progress_here += self.progress - before
        self.since_s = now_s
        self.unsaved_s += ran_s
        cycle_s = self.interval_s + self.job.checkpointing.cost_s
        if self.unsaved_s >= cycle_s:
            self.unsaved_s %= cycle_s
            self.saved_progress = self.progress - self.unsaved_s / self.pace_s

    def hold(self, now_s: float) -> None:
        """Stop the job on its devices; the rest of a restart is still due when it resumes."""
        if self.pace_s < math.inf:
            self.advance(now_s)
            self.restart_s = max(0.0, self.since_s - now_s)
            self._stop()

    def checkpoint(self, now_s: float) -> None:
        """Save all progress and stop; the checkpoint and a restart delay the next start."""
        self.advance(now_s)
        self.saved_progress, self.unsaved_s = self.progress, 0.0
        costs = self.job.checkpointing
        self.restart_s = costs.cost_s + costs.restart_s if self.progress else 0.0
        self._stop()

    def roll_back(self, now_s: float) -> float:
        """Stop the job, discard its progress since the last checkpoint, and return its run time."""
        self.advance(now_s)
        lost_s = self.unsaved_s
        self.progress, self.unsaved_s = self.saved_progress, 0.0
        self.restart_s = self.job.checkpointing.restart_s if self.progress else 0.0
        self._stop()
        return lost_s

    def restarted_s(self, now_s: float) -> float:
        """Return the time for which the job has restarted since it last resumed."""
        return max(0.0, self.restarting_s - max(0.0, self.since_s - now_s))

    def resume(self, now_s: float) -> None:
        """Make progress from ``now_s`` plus the restart delay on; the caller sets the pace."""
        self.restarting_s = self.restart_s
        self.since_s, self.restart_s = now_s + self.restart_s, 0.0

    def _stop(self) -> None:
        self.pace_s = self.overflows_at = math.inf
        self.restarting_s = 0.0
        self.timing += 1
