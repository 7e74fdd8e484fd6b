"""Part of a trace, or all of it faster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from presage.errors import ConfigError
from presage.schedulers.core.job import Job
from presage.schedulers.traces.row import MOST_S
from presage.schedulers.traces.trace import Trace
from presage.system.known_names import did_you_mean


def of_user(trace: Trace, user: str) -> Trace:
    """Return the jobs of one user; in Philly's trace, of one virtual cluster.

    Raises
    ------
    ConfigError
        No job has that user; suggests a similar one.
    """
    users = {job.user for job in trace.jobs}
    if user not in users:
        otherwise = f"it has {len(users - {''})} named users"
        hint = did_you_mean(user, sorted(users), otherwise=otherwise)
        raise ConfigError(f"no job of user {user!r} in the trace; {hint}")
    return _of(trace, (job for job in trace.jobs if job.user == user))


def between(trace: Trace, from_s: float, to_s: float) -> Trace:
    """Jobs submitted from ``from_s`` on and before ``to_s``; times count from ``from_s``."""
    return _of(
        trace,
        (
            replace(job, submit_s=job.submit_s - from_s)
            for job in trace.jobs
            if from_s <= job.submit_s < to_s
        ),
    )


def first(trace: Trace, jobs: int) -> Trace:
    """So many of the first jobs."""
    return _of(trace, trace.jobs[:jobs])


def loaded(trace: Trace, factor: float) -> Trace:
    """The same jobs in a ``factor``-th of the time: so many times the load.

    Raises
    ------
    ConfigError
        They would come later than any job of a trace can.
    """
    # By the product: of a small factor the quotient is infinite.
    if trace.jobs and trace.jobs[-1].submit_s > MOST_S * factor:
        raise ConfigError(
            f"load={factor:g}: jobs would come until more than {MOST_S:g} s, the longest that a "
            "trace can be; name a larger one"
        )
    return _of(trace, (replace(job, submit_s=job.submit_s / factor) for job in trace.jobs))


def _of(trace: Trace, jobs: Iterable[Job]) -> Trace:
    chosen = tuple(jobs)
    duration_s = {job.job_id: trace.duration_s[job.job_id] for job in chosen}
    return Trace(chosen, duration_s, trace.left_out)
