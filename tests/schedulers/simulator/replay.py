"""Decisions of a log, made again: the same log comes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from presage.errors import ImpossibleActionError, TableError
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State

_GRANTING: Mapping[str, type[Start | Resize | Migrate]] = {
    "start": Start, "resize": Resize, "migrate": Migrate
}  # fmt: skip
_PLAIN: Mapping[str, type[Preempt | Pause | Resume]] = {
    "preempt": Preempt, "pause": Pause, "resume": Resume
}  # fmt: skip


class Replay(Policy):
    """Does in each decision what a log says was done in it: no policy, for it counts them.

    Parameters
    ----------
    lines : iterable of str
        Of a log that :class:`presage.schedulers.simulator.results.event_log.EventLog` wrote.

    Raises
    ------
    TableError
        A line is none of a log; says which.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._of_decision: dict[int, list[Action]] = {}
        self._refused: dict[int, str] = {}  # why, of each decision that was
        self._decisions = decision = 0
        actions: list[Action] = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                what, job_id, more = entry["event"], entry.get("job_id", ""), entry.get("details")
                if what == "decide":
                    decision = int(more)
                    actions = self._of_decision.setdefault(decision, [])
                elif what == "refused":
                    self._refused[decision] = more["reason"]
                elif what in _ACTIONS:
                    actions.append(_action(what, job_id or more, more))
                elif what == "submit":  # after it, a line may say that the job can never run
                    actions = []
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise TableError(f"line {number} is none of a simulation's log ({error})") from None

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return a key that keeps the logged order."""
        return ()

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Return the logged decision.

        Raises
        ------
        ImpossibleActionError
            That was refused; says why, as the log does.
        """
        self._decisions += 1
        if self._decisions in self._refused:
            raise ImpossibleActionError(self._refused[self._decisions])
        return self._of_decision.get(self._decisions, [])


_ACTIONS = {*_GRANTING, *_PLAIN, "reserve", "reject", "wake"}


def _action(what: str, whose: Any, more: Any) -> Action:
    if what == "reserve":
        return Reserve(whose, _allocations(more["allocations"]), more["until_s"])
    if what in _GRANTING:
        return _GRANTING[what](whose, _allocations(more))
    if what == "reject":
        return Reject(whose, more or "")  # a line leaves out what is empty
    if what == "wake":
        return Wake(whose)
    return _PLAIN[what](whose)


def _allocations(rows: Any) -> tuple[Allocation, ...]:
    return tuple(Allocation(*allocation) for allocation in rows)
