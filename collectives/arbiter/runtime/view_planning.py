"""Planning of the next view from the reports of all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from presage.collectives.arbiter import agreement, membership
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.planner import JobReport, plan
from presage.collectives.arbiter.runtime.controller_steps import ControllerSteps
from presage.collectives.arbiter.runtime.state import ArbiterState
from presage.collectives.core.arbitration import decision_tables
from presage.collectives.core.fencing import JobPlan
from presage.collectives.core.view import JobView


class ViewPlanning:
    """Planning of views: which jobs take part, and what they are allowed."""

    def __init__(self, state: ArbiterState, steps: ControllerSteps) -> None:
        self._state, self._steps = state, steps

    async def plan(self, now_s: float) -> None:
        """Propose new decisions if the planner wants them.

        Raises
        ------
        JournalError
            The journal cannot be written.
        """
        state = self._state
        members = membership.members(state.jobs.by_name.values(), now_s)
        if any(not job.is_complete for job in members):
            return  # of the journal: they come back, or leave soon
        members, reports, problems = self._reports(members, now_s)
        joining = [job for job in members if not job.is_member]
        current = None if joining or not state.controller.is_stable else state.view
        if not members and not state.controller.jobs:
            return
        tables = agreement.views_in_force(state.controller)
        view = plan(reports, current, state.switches.slots, state.options.planner, tables)
        if view is None:
            return
        planned = [(job, job.is_member, job.switches) for job in members]
        tables = await asyncio.to_thread(decision_tables, view)
        async with state.lock:
            jobs = state.jobs.by_name
            found = [(jobs.get(j.name), j.is_member, j.switches) for j in members]
            if found != planned or not state.controller.can_propose:
                return  # a job was replaced, or has other switches now
            state.view, state.problems = view, problems
            await self._propose(members, joining, tables, now_s)

    async def _propose(
        self, members: list[Job], joining: list[Job], tables: dict[str, JobView], now_s: float
    ) -> None:
        """Let jobs join, and begin the change to these decisions; the lock is held."""
        state = self._state
        state.raise_epoch()
        plans = [JobPlan(job.name, job.size, tables[job.name]) for job in members]
        for job in joining:
            job.is_member = job.was_member = True
            job.progress_s = now_s
        state.changes += 1
        names = [job.name for job in joining]
        await self._steps.apply(agreement.propose(state.controller, plans, names))

    def _reports(
        self, jobs: Iterable[Job], now_s: float
    ) -> tuple[list[Job], list[JobReport], dict[str, str]]:
        """Return the jobs that can be planned, their reports, and why arrivals are unknown."""
        state = self._state
        planned, reports, problems = [], [], {}
        for job in jobs:
            try:
                demand, problem = job.demand(state.switches.domain.link(job.switches))
            except ValueError as error:
                state.notice(f"job {job.name!r} cannot be planned ({error}); it runs by ring")
                job.back_s = now_s + state.options.idle_s
                membership.take_out(job, state.controller)
                continue
            planned.append(job)
            reports.append(JobReport(demand, job.started))
            if problem:
                problems[job.name] = problem
        return planned, reports, problems
