"""How far jobs are, as they report it: all that a policy learns of how fast they run."""

from __future__ import annotations

import math

_NONE = (0.0, math.inf, 0.0, 0.0, 0.0)  # of a job that never reported


class Progress:
    """Of each job the part that was done when it last reported, and how fast it then went on."""

    __slots__ = ("_known_per_s", "_reports")

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, float, float, float, float]] = {}
        self._known_per_s: dict[str, float] = {}

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
        self._reports[job_id] = done, since_s, per_s, saved, max(per_s, most_per_s)
        if per_s > 0:
            self._known_per_s[job_id] = per_s

    def forget(self, job_id: str) -> None:
        """Of a job that is over."""
        self._reports.pop(job_id, None)
        self._known_per_s.pop(job_id, None)

    def pace_s(self, job_id: str) -> float:
        """Seconds that all of a job would take as it runs now; 0 if it stands, or nobody says."""
        _, _, per_s, _, _ = self._reports.get(job_id, _NONE)
        return 1.0 / per_s if per_s > 0 else 0.0

    def least_pace_s(self, job_id: str) -> float:
        """As ``pace_s``, of a job that is as fast as what was measured may mean."""
        _, _, per_s, _, most_per_s = self._reports.get(job_id, _NONE)
        return 1.0 / most_per_s if per_s > 0 else 0.0

    def unsaved_s(self, job_id: str, now_s: float) -> float:
        """Seconds that what is done and not saved has taken; infinite where nobody can tell.

        By the last pace that was known: while a job stands, or is measured anew, what it has saved
        is not less.
        """
        _, _, _, saved, _ = self._reports.get(job_id, _NONE)
        unsaved = self.at(job_id, now_s) - saved
        per_s = self._known_per_s.get(job_id, 0.0)
        if not saved:
            return math.inf
        return 0.0 if unsaved <= 0 else unsaved / per_s if per_s else math.inf

    def at(self, job_id: str, now_s: float) -> float:
        """Part that is done by now, within [0, 1]; 0 of a job that never reported."""
        done, since_s, per_s, _, _ = self._reports.get(job_id, _NONE)
        return min(1.0, done + max(0.0, now_s - since_s) * per_s)
