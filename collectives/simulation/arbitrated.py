"""Rule of the arbiter in the simulator: phases, views and decisions are those of the real code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.planner import ADOPTION_CALLS, JobReport, plan
from presage.collectives.core.arbitration import decision_tables
from presage.collectives.core.demand import Call, JobDemand
from presage.collectives.core.view import RING_ONLY, JobView, View
from presage.collectives.phases.estimator import PhaseEstimator
from presage.collectives.simulation.phased_job import PhasedJob
from presage.collectives.simulation.rules import Rule


class Arbitrated(Rule):
    """Decisions of the arbiter on phases that ``PhaseEstimator`` learns from the run.

    Reports of the jobs are planned as by ``presage inc arbiter``, with its options. Until all ranks
    have adopted a view, an AllReduce is allowed that both this view and the previous one allow.

    Parameters
    ----------
    jobs : sequence of PhasedJob
        Jobs of the run.
    slots : mapping of str to int
        Slots by switch.
    options : ArbiterOptions
        Options of the arbiter. Only ``plan_s`` and ``planner`` matter: no message is lost.
    """

    def __init__(
        self, jobs: Sequence[PhasedJob], slots: Mapping[str, int], options: ArbiterOptions
    ) -> None:
        self.interval_s = options.plan_s
        self._planner, self._slots = options.planner, dict(slots)
        self._jobs = [job for job in jobs if job.switches and job.ranks > 1]
        self._estimators = {
            job.job_id: PhaseEstimator(clock=lambda: self._now_s) for job in self._jobs
        }
        self._now_s = 0.0
        self._started: dict[str, int] = {}
        self._planned_at: dict[str, int] = {}  # started when the newest view was planned
        self._view: View | None = None
        self._old: dict[str, JobView] = {}
        self._new: dict[str, JobView] = {}

    def observe(self, job: PhasedJob, number: int, start_s: float, size_bytes: int) -> None:
        """Record the start of an AllReduce."""
        self._now_s = start_s
        self._started[job.job_id] = number
        if all(self._started[j] - n >= ADOPTION_CALLS for j, n in self._planned_at.items()):
            self._old = self._new
        if job.job_id in self._estimators:
            allowed = self.is_allowed(job, number)
            self._estimators[job.job_id].observe(number, start_s, size_bytes, on_switch=allowed)

    def is_allowed(self, job: PhasedJob, number: int) -> bool:
        """Return what the view of the job says."""
        views = (self._old, self._new)
        return all(v.get(job.job_id, RING_ONLY).is_allowed(number) for v in views)

    def plan(self, now_s: float) -> None:
        """Change the decisions if the planner of the arbiter wants it."""
        self._now_s = now_s
        if self._old is not self._new:
            return  # not adopted yet
        jobs = [job for job in self._jobs if job.job_id in self._started]
        reports = [JobReport(self._demand(job), self._started[job.job_id]) for job in jobs]
        view = plan(reports, self._view, self._slots, self._planner, self._new)
        if view is not None:
            self._view, self._new = view, decision_tables(view)
            self._planned_at = {job.job_id: self._started[job.job_id] for job in jobs}

    def _demand(self, job: PhasedJob) -> JobDemand:
        """Return the demand by the phases so far, as ``arbiter.jobs.Job`` makes it of reports."""
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
            margin_s=phases.margin_s,
        )
