"""How far jobs are, as they report it: all that a policy learns of how fast they run."""

from __future__ import annotations


class Progress:
    """Of each job the part that was done when it last reported, and how fast it then went on."""

    __slots__ = ("_reports",)

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, float, float]] = {}

    def report(self, job_id: str, done: float, since_s: float, per_s: float) -> None:
        """From ``since_s`` on a job does ``per_s`` of the whole each second; 0 if it stands."""
        self._reports[job_id] = done, since_s, per_s

    def forget(self, job_id: str) -> None:
        """Of a job that is over."""
        self._reports.pop(job_id, None)

    def pace_s(self, job_id: str) -> float:
        """Seconds that all of a job would take as it runs now; 0 if it stands, or nobody says."""
        _, _, per_s = self._reports.get(job_id, (0.0, 0.0, 0.0))
        return 1.0 / per_s if per_s > 0 else 0.0

    def at(self, job_id: str, now_s: float) -> float:
        """Part that is done by now, within [0, 1]; 0 of a job that never reported."""
        done, since_s, per_s = self._reports.get(job_id, (0.0, now_s, 0.0))
        return min(1.0, done + max(0.0, now_s - since_s) * per_s)
