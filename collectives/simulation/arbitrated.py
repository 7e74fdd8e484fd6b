"""Rule of the arbiter in the simulator: phases, views and decisions are those of the real code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from presage.collectives.core.arbitration import AGEING, decision_tables
from presage.collectives.core.demand import Call, JobDemand
from presage.collectives.core.view import RING_ONLY, JobView, View
from presage.collectives.phases.estimator import PhaseEstimator
from presage.collectives.simulation.phased_job import PhasedJob
from presage.collectives.simulation.rules import Rule


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the arbiter.

    Attributes
    ----------
    window : int
        AllReduces of each job that a view decides.
    replan_s : float
        Time between two views.
    delay_s : float
        Time from a view to its use, in which only what it and its predecessor allow is allowed.
    ageing : float
        See :func:`presage.collectives.core.arbitration.decision_tables`.
    margin : float
        Times the margin that the estimator gives.
    """

    window: int = 64
    replan_s: float = 1.0
    delay_s: float = 0.005
    ageing: float = AGEING
    margin: float = 1.0

    def __post_init__(self) -> None:
        if self.window < 0 or not self.replan_s > 0 or not (self.delay_s >= 0 <= self.margin):
            raise ValueError(f"{self}: window, delay_s and margin are at least 0, replan_s above")


class Arbitrated(Rule):
    """Decisions by ``decision_tables`` on phases that ``PhaseEstimator`` learns from the run.

    Parameters
    ----------
    jobs : sequence of PhasedJob
        Jobs of the run.
    slots : mapping of str to int
        Slots by switch.
    settings : Settings
        Settings of the arbiter.
    """

    def __init__(
        self, jobs: Sequence[PhasedJob], slots: Mapping[str, int], settings: Settings
    ) -> None:
        self.interval_s = settings.replan_s
        self._settings, self._slots = settings, tuple(sorted(slots.items()))
        self._jobs = [job for job in jobs if job.switches and job.ranks > 1]
        self._estimators = {
            job.job_id: PhaseEstimator(clock=lambda: self._now_s) for job in self._jobs
        }
        self._now_s, self._used_from_s = 0.0, math.inf
        self._started: dict[str, int] = {}
        self._old: dict[str, JobView] = {}
        self._new: dict[str, JobView] = {}
        self._epochs = itertools.count(1)

    def observe(self, job: PhasedJob, number: int, start_s: float, size_bytes: int) -> None:
        """Record the start of an AllReduce."""
        self._now_s = start_s
        self._started[job.job_id] = number
        if job.job_id in self._estimators:
            self._estimators[job.job_id].observe(number, start_s, size_bytes)

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return what the view of the job says."""
        if self._now_s >= self._used_from_s:
            self._old, self._used_from_s = self._new, math.inf
        views = (self._old, self._new)
        return all(v.get(job.job_id, RING_ONLY).is_allowed(number) for v in views)

    def plan(self, now_s: float) -> None:
        """Make a view of all jobs that have started an AllReduce."""
        self._now_s = now_s
        jobs = [job for job in self._jobs if job.job_id in self._started]
        view = View(
            epoch=next(self._epochs),
            slots=self._slots,
            jobs=tuple(self._demand(job) for job in jobs),
            first_numbers=tuple(self._started[job.job_id] + 1 for job in jobs),
            window=self._settings.window,
        )
        self._new = decision_tables(view, ageing=self._settings.ageing)
        self._used_from_s = now_s + self._settings.delay_s

    def _demand(self, job: PhasedJob) -> JobDemand:
        phases = self._estimators[job.job_id].estimate()
        largest = max(call.size_bytes for call in job.calls)
        unknown = JobDemand(
            job.job_id, job.ranks, job.switches, job.link, math.nan, (Call(0.0, largest),)
        )
        if phases is None:
            return unknown
        return replace(
            unknown,
            period_s=phases.period_s,
            calls=phases.calls,
            anchor_number=phases.anchor_number,
            anchor_s=phases.anchor_s,
            margin_s=self._settings.margin * phases.margin_s,
        )
