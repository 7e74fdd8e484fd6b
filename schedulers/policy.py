"""The one signature of every policy."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from presage.schedulers.action import Action
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.job import Job
from presage.schedulers.queue import Key
from presage.schedulers.standing import Standing
from presage.schedulers.state import State


class Policy(Protocol):
    """Who decides. Pure: no clock, no I/O; it may remember what it was foretold."""

    def key(self, job: Job, standing: Standing, forecasts: Forecasts) -> Key:
        """A job's place in the queue, smallest first; the same for as long as it waits.

        Of equal keys the job that was submitted first goes first.
        """
        ...

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """What to do now, in order; all of it is done, or nothing."""
        ...
