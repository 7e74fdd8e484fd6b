"""How busy jobs keep their devices, as it was measured: a mean over the last while.

A mean, not the latest reading: a job that was just paused reads 0, and would be resumed at once
(requirement N7).
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Usage:
    """Of each job a step function of time, as far back as a window goes.

    Parameters
    ----------
    window_s : float
        What means are taken over; of a job that is younger, over its life.
    """

    __slots__ = ("_steps", "_window_s")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._steps: dict[str, deque[tuple[float, float]]] = {}

    def report(self, job_id: str, since_s: float, milli: float) -> None:
        """From ``since_s`` on a job keeps so many thousandths of each of its devices busy."""
        steps = self._steps.setdefault(job_id, deque())
        while len(steps) > 1 and steps[1][0] <= since_s - self._window_s:
            steps.popleft()
        if steps and steps[-1][0] >= since_s:  # two of one moment: the second holds
            steps.pop()
        steps.append((since_s, milli))

    def forget(self, job_id: str) -> None:
        """Of a job that is over."""
        self._steps.pop(job_id, None)

    def at(self, job_id: str, now_s: float) -> float:
        """Mean over the window that ends now; 0 of a job that nobody measured."""
        busy, end_s, begin_s = 0.0, now_s, now_s - self._window_s
        for since_s, milli in reversed(self._steps.get(job_id, ())):
            start_s = max(since_s, begin_s)
            busy += milli * max(0.0, end_s - start_s)
            end_s = min(end_s, start_s)
            if since_s <= begin_s:
                break
        return busy / (now_s - end_s) if end_s < now_s else 0.0
