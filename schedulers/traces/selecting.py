"""Selection of jobs from a trace, and scaling of its load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from presage.errors import ConfigError
from presage.schedulers.core.job import Job
from presage.schedulers.traces.row import MOST_S
from presage.schedulers.traces.trace import Trace
from presage.system.text.known_names import did_you_mean


def select_user(trace: Trace, user: str) -> Trace:
    """Return the jobs of one user (in Philly, of one virtual cluster).

    Raises
    ------
    ConfigError
        The trace has no such user; the message suggests a similar one.
    """
    users = {job.user for job in trace.jobs}
    if user not in users:
        otherwise = f"it has {len(users - {''})} named users"
        hint = did_you_mean(user, sorted(users), otherwise=otherwise)
        raise ConfigError(f"no job of user {user!r} in the trace; {hint}")
    return _with_jobs(trace, (job for job in trace.jobs if job.user == user))


def select_period(trace: Trace, from_s: float, to_s: float) -> Trace:
    """Return the jobs submitted in [from_s, to_s); times count from ``from_s``."""
    return _with_jobs(
        trace,
        (
            replace(job, submit_s=job.submit_s - from_s)
            for job in trace.jobs
            if from_s <= job.submit_s < to_s
        ),
    )


def select_first(trace: Trace, jobs: int) -> Trace:
    """Return the first jobs of a trace."""
    return _with_jobs(trace, trace.jobs[:jobs])


def scale_load(trace: Trace, factor: float) -> Trace:
    """Return the trace with ``factor`` times the arrival rate.

    Raises
    ------
    ConfigError
        The trace would become longer than ``MOST_S``.
    """
    # A product: for a small factor the quotient is infinite.
    if trace.jobs and trace.jobs[-1].submit_s > MOST_S * factor:
        raise ConfigError(
            f"load={factor:g}: the last job would be submitted after more than {MOST_S:g} s, the "
            "longest trace; use a larger load"
        )
    return _with_jobs(trace, (replace(job, submit_s=job.submit_s / factor) for job in trace.jobs))


def _with_jobs(trace: Trace, jobs: Iterable[Job]) -> Trace:
    selected = tuple(jobs)
    duration_s = {job.job_id: trace.duration_s[job.job_id] for job in selected}
    return Trace(selected, duration_s, trace.left_out)
