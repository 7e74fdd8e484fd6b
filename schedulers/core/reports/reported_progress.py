"""Progress that jobs report: the only source of their speed for a policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from presage.schedulers.core.reports.change_log import ChangeLog
from presage.system.arrays import Array

_NO_REPORT = (0.0, math.inf, 0.0, 0.0, 0.0)
_NO_PACES: Mapping[tuple[int, int], float] = MappingProxyType({})


class Progress:
    """Last reported progress of each job, and the speed at which it continues since.

    Attributes
    ----------
    changes : ChangeLog
        Jobs that have reported.
    """

    __slots__ = ("_known_per_s", "_paces", "_reports", "changes")

    def __init__(self) -> None:
        self.changes = ChangeLog()
        self._reports: dict[str, tuple[float, float, float, float, float]] = {}
        self._known_per_s: dict[str, float] = {}
        self._paces: dict[str, dict[tuple[int, int], float]] = {}

    def report(
        self,
        job_id: str,
        done: float,
        since_s: float,
        per_s: float,
        saved: float = 0.0,
        most_per_s: float = 0.0,
    ) -> None:
        """Record that a job completes a fraction ``per_s`` each second from ``since_s`` on.

        Parameters
        ----------
        done : float
            Fraction that is done at ``since_s``.
        per_s : float
            Fraction of the whole job that is done each second; 0 if the job is stopped.
        saved : float
            Fraction that the last checkpoint holds; 0 if the job does not report it.
        most_per_s : float
            Upper bound of ``per_s`` if that is a measurement with an error.
        """
        self.changes.note(job_id)
        self._reports[job_id] = done, since_s, per_s, saved, max(per_s, most_per_s)
        if per_s > 0:
            self._known_per_s[job_id] = per_s

    def report_size(self, job_id: str, gpus: int, nodes: int, pace_s: float) -> None:
        """Record the run time of the whole job at its measured speed on a number of devices."""
        self._paces.setdefault(job_id, {})[gpus, nodes] = pace_s

    def paces_s(self, job_id: str) -> Mapping[tuple[int, int], float]:
        """Return the last measured run times of the whole job, by numbers of devices and nodes."""
        return self._paces.get(job_id, _NO_PACES)

    def forget(self, job_id: str) -> None:
        """Drop the progress of a job that has ended."""
        if self._paces:
            self._paces.pop(job_id, None)
        self._reports.pop(job_id, None)
        self._known_per_s.pop(job_id, None)

    def copy(self) -> Progress:
        """Return a copy, which later reports do not change."""
        copied = Progress()
        copied._reports = self._reports.copy()
        copied._known_per_s = self._known_per_s.copy()
        copied._paces = {job_id: dict(paces) for job_id, paces in self._paces.items()}
        return copied

    def last_report(self, job_id: str) -> object:
        """Return the last report of a job, the same object until the next one; None for none."""
        return self._reports.get(job_id)

    def pace_s(self, job_id: str) -> float:
        """Return the run time of the whole job at its present speed; 0 if stopped or unknown."""
        _, _, per_s, _, _ = self._reports.get(job_id, _NO_REPORT)
        return 1.0 / per_s if per_s > 0 else 0.0

    def least_pace_s(self, job_id: str) -> float:
        """Return the shortest run time of the whole job that its measured speed allows."""
        _, _, per_s, _, most_per_s = self._reports.get(job_id, _NO_REPORT)
        return 1.0 / most_per_s if per_s > 0 else 0.0

    def unsaved_s(self, job_id: str, now_s: float) -> float:
        """Return the seconds of work since a job's last checkpoint; infinite if unknown.

        They follow from the last known speed: while a job is stopped or measured again, its unsaved
        work remains.
        """
        _, _, _, saved, _ = self._reports.get(job_id, _NO_REPORT)
        unsaved = self.at(job_id, now_s) - saved
        per_s = self._known_per_s.get(job_id, 0.0)
        if not saved:
            return math.inf
        return 0.0 if unsaved <= 0 else unsaved / per_s if per_s else math.inf

    def at(self, job_id: str, now_s: float) -> float:
        """Return the fraction that is done by now, within [0, 1]; 0 without a report."""
        done, since_s, per_s, _, _ = self._reports.get(job_id, _NO_REPORT)
        return min(1.0, done + max(0.0, now_s - since_s) * per_s)

    def line(self, job_id: str) -> tuple[float, float, float]:
        """Return the fraction that was done at a time, that time, and what is done a second since.

        Without a report the time is infinite.
        """
        return self._reports.get(job_id, _NO_REPORT)[:3]

    def of_jobs(self, job_ids: Iterable[str], now_s: float) -> Array:
        """Return :meth:`at` of several jobs, of shape (jobs,)."""
        reports = [self._reports.get(job_id, _NO_REPORT) for job_id in job_ids]
        done, since_s, per_s, _, _ = np.array(reports).reshape(-1, len(_NO_REPORT)).T
        found: Array = np.minimum(1.0, done + np.maximum(0.0, now_s - since_s) * per_s)
        return found
