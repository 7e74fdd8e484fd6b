"""Decisions of a log, made again: the same log comes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from presage.features.errors import TableError
from presage.schedulers.action import (
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
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.queue import Key
from presage.schedulers.standing import Standing
from presage.schedulers.state import State

_GRANTING: Mapping[str, type[Start | Resize | Migrate]] = {
    "start": Start, "resize": Resize, "migrate": Migrate
}  # fmt: skip
_PLAIN: Mapping[str, type[Preempt | Pause | Resume]] = {
    "preempt": Preempt, "pause": Pause, "resume": Resume
}  # fmt: skip


class Replay:
    """Does in each decision what a log says was done in it: no policy, for it counts them.

    Parameters
    ----------
    lines : iterable of str
        Of a log that :class:`presage.schedulers.simulator.event_log.EventLog` wrote.

    Raises
    ------
    TableError
        A line is none of a log; says which.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._of_decision: dict[int, list[Action]] = {}
        self._decisions = 0
        actions: list[Action] = []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                what, job_id, more = entry["what"], entry.get("job", ""), entry.get("more")
                if what == "decide":
                    actions = self._of_decision.setdefault(int(more), [])
                elif what == "refused":
                    actions += [_action(*one) for one in more["actions"]]
                elif what in _ACTIONS:
                    actions.append(_action(what, job_id or more, more))
                elif what == "submit":  # after it, a line may say that the job can never run
                    actions = []
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise TableError(f"line {number} is none of a simulation's log ({error})") from None

    def key(self, job: Job, standing: Standing, forecasts: Forecasts) -> Key:
        """As they come: what is logged says who is next."""
        return ()

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """What was decided then."""
        self._decisions += 1
        return self._of_decision.get(self._decisions, [])


_ACTIONS = {*_GRANTING, *_PLAIN, "reserve", "reject", "wake"}


def _action(what: str, whose: Any, more: Any = None, until_s: float = 0.0) -> Action:
    if what == "reserve":
        if isinstance(more, dict):
            more, until_s = more["grants"], more["until_s"]
        return Reserve(whose, tuple(Grant(*grant) for grant in more), until_s)
    if what in _GRANTING:
        return _GRANTING[what](whose, tuple(Grant(*grant) for grant in more))
    if what == "reject":
        return Reject(whose, more)
    if what == "wake":
        return Wake(whose)
    return _PLAIN[what](whose)
