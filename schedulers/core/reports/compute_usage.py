"""Recent mean of the measured compute usage of jobs.

It is a mean, not the latest reading: a job that was just paused reads 0, and would be resumed at
once (requirement N7).
"""

from __future__ import annotations

from collections import deque

from presage.schedulers.core.reports.change_log import ChangeLog

WINDOW_S = 60.0


class Usage:
    """Compute usage of jobs: for each a step function of time over a sliding window.

    Parameters
    ----------
    window_s : float
        Length of the window over which means are taken; a younger job's mean covers its life.

    Attributes
    ----------
    changes : ChangeLog
        Jobs that have reported.
    """

    __slots__ = ("_steps", "_window_s", "changes")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self.changes = ChangeLog()
        self._steps: dict[str, deque[tuple[float, float]]] = {}

    def report(self, job_id: str, since_s: float, milli: float) -> None:
        """Record a job's usage from ``since_s`` on, in thousandths of each of its devices."""
        self.changes.note(job_id)
        steps = self._steps.setdefault(job_id, deque())
        while len(steps) > 1 and steps[1][0] <= since_s - self._window_s:
            steps.popleft()
        if steps and steps[-1][0] >= since_s:  # of two reports at one time the second counts
            steps.pop()
        steps.append((since_s, milli))

    def forget(self, job_id: str) -> None:
        """Drop the usage of a job that has ended."""
        self._steps.pop(job_id, None)

    def last_report(self, job_id: str) -> object:
        """Return the last report of a job, the same object until the next one; None for none."""
        steps = self._steps.get(job_id)
        return steps[-1] if steps else None

    def most(self, job_id: str) -> float:
        """Return the largest mean that is possible without another report."""
        return max((milli for _, milli in self._steps.get(job_id, ())), default=0.0)

    def at(self, job_id: str, now_s: float) -> float:
        """Return the mean over the window that ends now; 0 for a job without measurements."""
        busy, end_s, begin_s = 0.0, now_s, now_s - self._window_s
        for since_s, milli in reversed(self._steps.get(job_id, ())):
            start_s = max(since_s, begin_s)
            busy += milli * max(0.0, end_s - start_s)
            end_s = min(end_s, start_s)
            if since_s <= begin_s:
                break
        return busy / (now_s - end_s) if end_s < now_s else 0.0
