"""Least attained service in two queues: a policy for jobs of unknown run time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from presage.errors import ConfigError
from presage.schedulers.core.action import Action, Start, Wake
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy, PolicyNeeds
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.preemption import start_by_rank

THRESHOLD_S = 3600.0  # device-seconds


class LeastAttainedService(Policy):
    """Policy that runs jobs with little attained service first, in two queues by arrival.

    Parameters
    ----------
    threshold_s : float
        Attained service, in device-seconds, from which a job belongs to the second queue.
    skips_unfit : bool
        Whether jobs behind one that does not fit may start, as in Tiresias; else it blocks them.

    References
    ----------
    Gu et al.: Tiresias, NSDI 2019 (discretized two-dimensional LAS with two queues; there starving
    jobs return to the first queue, here they do not).
    """

    needs = PolicyNeeds(preempts=True, orders_jobs=True)

    def __init__(self, threshold_s: float = THRESHOLD_S, skips_unfit: bool = False) -> None:
        if not threshold_s > 0:
            raise ConfigError(f"las: threshold_s={threshold_s}, must be > 0")
        self._threshold_s, self._skips_unfit = threshold_s, skips_unfit

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then queue, then arrival."""
        return self._rank(job, status, status.since_s)[1:]

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """Start jobs by queue, preempting those of the second; wake when a job changes queues."""

        def rank(job: Job, status: JobStatus) -> Key:
            return self._rank(job, status, state.now_s)

        if not len(state.pending):
            return []
        actions = start_by_rank(state, rank, skips_unfit=self._skips_unfit)
        running = {job_id: len(status.allocations) for job_id, status in state.running.items()}
        for action in actions:  # devices of each job that runs from now on
            running.pop(action.job_id, None)
            if isinstance(action, Start):
                running[action.job_id] = len(action.allocations)
        ages_s = [
            state.now_s + (self._threshold_s - attained_s) / members
            for job_id, members in running.items()
            if (attained_s := state.status(job_id).attained_at(state.now_s)) < self._threshold_s
        ]
        if ages_s:
            return [*actions, Wake(min(ages_s))]
        return actions

    def _rank(self, job: Job, status: JobStatus, now_s: float) -> Key:
        """Return the class, then the key."""
        is_old = status.attained_at(now_s) >= self._threshold_s * (1 - 1e-9)
        return (not job.latency_sensitive, -job.priority, is_old, job.submit_s)
