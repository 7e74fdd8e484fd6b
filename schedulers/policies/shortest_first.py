"""Shortest job first."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.fifo import start_in_order


class ShortestFirst(Policy):
    """Policy that starts jobs by predicted run time; one that does not fit blocks those behind."""

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then predicted run time; jobs without a forecast sort last."""
        return (-job.priority, forecasts.runtime_s(job), job.submit_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Start]:
        """Start jobs from the head of the queue while they fit."""
        return start_in_order(state)
