"""How far jobs are, as they report it: all that a policy learns of how fast they run."""

from __future__ import annotations

import math


class Progress:
    """Of each job the part that was done when it last reported, and how fast it then went on."""

    __slots__ = ("_most_per_s", "_reports", "_saved")

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, float, float]] = {}
        self._saved: dict[str, float] = {}
        self._most_per_s: dict[str, float] = {}

    def report(
        self,
        job_id: str,
        done: float,
        since_s: float,
        per_s: float,
        saved: float = 0.0,
        most_per_s: float = 0.0,
    ) -> None:
        """From ``since_s`` on a job does ``per_s`` of the whole each second; 0 if it stands.

        ``saved`` is the part that its last checkpoint holds, where it says that; ``most_per_s`` the
        fastest that it may be, where what it does was measured and is not sure.
        """
        self._reports[job_id] = done, since_s, per_s
        if saved:
            self._saved[job_id] = saved
        if most_per_s:
            self._most_per_s[job_id] = most_per_s

    def forget(self, job_id: str) -> None:
        """Of a job that is over."""
        self._reports.pop(job_id, None)
        self._saved.pop(job_id, None)
        self._most_per_s.pop(job_id, None)

    def unsaved_s(self, job_id: str, now_s: float) -> float:
        """Seconds that what is done and not saved has taken; infinite where nobody can tell."""
        saved, pace_s = self._saved.get(job_id, 0.0), self.pace_s(job_id)
        return max(0.0, self.at(job_id, now_s) - saved) * pace_s if saved and pace_s else math.inf

    def pace_s(self, job_id: str) -> float:
        """Seconds that all of a job would take as it runs now; 0 if it stands, or nobody says."""
        _, _, per_s = self._reports.get(job_id, (0.0, 0.0, 0.0))
        return 1.0 / per_s if per_s > 0 else 0.0

    def least_pace_s(self, job_id: str) -> float:
        """As ``pace_s``, of a job that is as fast as what was measured may mean."""
        pace_s, most_per_s = self.pace_s(job_id), self._most_per_s.get(job_id, 0.0)
        return min(pace_s, 1.0 / most_per_s) if most_per_s else pace_s

    def at(self, job_id: str, now_s: float) -> float:
        """Part that is done by now, within [0, 1]; 0 of a job that never reported."""
        done, since_s, per_s = self._reports.get(job_id, (0.0, now_s, 0.0))
        return min(1.0, done + max(0.0, now_s - since_s) * per_s)
