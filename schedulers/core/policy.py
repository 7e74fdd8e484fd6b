"""The one signature of every policy."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from presage.schedulers.core.action import Action
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State


class Policy(Protocol):
    """Who decides. Pure: no clock, no I/O; it may remember what it was foretold."""

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """A job's place in the queue, smallest first; the same for as long as it waits.

        Of equal keys the job that was submitted first goes first.
        """
        ...

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """What to do now, in order; all of it is done, or nothing."""
        ...
