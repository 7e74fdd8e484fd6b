"""Report of the leader of an elastic job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_WORKERS = 64  # of an elastic job
MIN_MEASURED_S = 5.0  # a speed that was measured over less time is not used


class LeaderReport(NamedTuple):
    """What the leader of an elastic job reports.

    Attributes
    ----------
    attempt : int
        Attempt of the job.
    done, saved : float
        Fraction of the job that is committed, and that the last checkpoint holds.
    size : int
        Number of workers that train.
    per_s : float
        Fraction of the job per second with ``size`` workers; 0 if not measured yet.
    measured_s : float
        Time over which it was measured, in seconds.
    states : mapping of str to str
        State of each worker by its name.
    time_s : float
        Time of the report.
    problem : str
        Why the leader cannot carry out what is required at the moment; "" if it can.
    capacity : int
        Largest number of workers that train at once, by the batch of the job.
    """

    attempt: int
    done: float
    saved: float
    size: int
    per_s: float
    measured_s: float
    states: Mapping[str, str]
    time_s: float
    problem: str = ""
    capacity: int = MAX_WORKERS
