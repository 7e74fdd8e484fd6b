"""Shortest remaining time first: shortest job first, with preemption."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Preempt, Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key, priority_key
from presage.schedulers.core.state import State
from presage.schedulers.policies.preemption import start_by_rank


class ShortestRemainingFirst:
    """Run the jobs that are foretold to be over soonest from now on.

    What is left of a job is its foretold run time less what it has run. One that is overdue ranks
    first: of forecasts that are too low it keeps its devices.
    """

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """By what is left, within a class and a priority."""
        return self._rank(job, status, forecasts, status.since_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Preempt | Start]:
        """Start who has least left, in place of who has more where there is no room."""

        def rank(job: Job, status: JobStatus) -> Key:
            return self._rank(job, status, forecasts, state.now_s)

        return start_by_rank(state, rank)

    def _rank(self, job: Job, status: JobStatus, forecasts: Forecasts, now_s: float) -> Key:
        ran_s = status.attained_at(now_s) / job.gpus
        left_s = max(0.0, forecasts.runtime_s(job) - ran_s)
        return (*priority_key(job), left_s, job.submit_s)
