"""Shortest job first."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key, priority_key
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import start_in_order


class ShortestFirst:
    """Start the job that is foretold to be over soonest; if it does not fit, all others wait."""

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """By run time, within a class and a priority; what nobody foretells comes last."""
        return (*priority_key(job), forecasts.runtime_s(job), job.submit_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start whoever is at the head, and fits."""
        return start_in_order(state)
