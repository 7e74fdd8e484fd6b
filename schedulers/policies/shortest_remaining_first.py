"""Shortest remaining time first: shortest job first, with preemption."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Preempt, Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy, PolicyNeeds
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.preemption import start_by_rank


class ShortestRemainingFirst(Policy):
    """Policy that runs the jobs with the shortest predicted remaining time.

    The remaining time is the predicted run time minus the time that the job has run. A job that has
    run longer than predicted ranks first, so that it keeps its devices if the forecast was too low.

    Parameters
    ----------
    skips_unfit : bool
        Whether jobs behind one that does not fit may start; else it blocks them.
    """

    needs = PolicyNeeds(preempts=True, orders_jobs=True)

    def __init__(self, skips_unfit: bool = False) -> None:
        self._skips_unfit = skips_unfit

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then predicted remaining time."""
        return self._rank(job, status, forecasts, status.since_s)[1:]

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Preempt | Start]:
        """Start the jobs with the least remaining time; preempt those with more where needed."""

        def rank(job: Job, status: JobStatus) -> Key:
            return self._rank(job, status, forecasts, state.now_s)

        return start_by_rank(state, rank, skips_unfit=self._skips_unfit)

    def _rank(self, job: Job, status: JobStatus, forecasts: Forecasts, now_s: float) -> Key:
        """Return the class, then the key."""
        ran_s = status.attained_at(now_s) / job.gpus
        left_s = max(0.0, forecasts.runtime_s(job) - ran_s)
        return (not job.latency_sensitive, -job.priority, left_s, job.submit_s)
