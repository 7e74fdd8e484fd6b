"""Decisions of a log, made again: the same log comes of them."""

from __future__ import annotations

import json
from bisect import bisect_right
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
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.queue import Key
from presage.schedulers.standing import Phase, Standing
from presage.schedulers.state import State

_GRANTING: Mapping[str, type[Start | Resize | Migrate]] = {
    "start": Start, "resize": Resize, "migrate": Migrate
}  # fmt: skip
_PLAIN: Mapping[str, type[Preempt | Pause | Resume]] = {
    "preempt": Preempt, "pause": Pause, "resume": Resume
}  # fmt: skip


class Replay:
    """Does at each moment what a log says was decided then, and wakes for the next one.

    Parameters
    ----------
    lines : iterable of str
        Of a log that :class:`presage.schedulers.event_log.EventLog` wrote.

    Raises
    ------
    TableError
        A line is none of a log; says which.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._decided: dict[float, list[Action]] = {}
        self._refused: set[float] = set()
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                now_s, what = float(entry["s"]), entry["what"]
                job_id, more = entry.get("job", ""), entry.get("more")
                if what == "refused":
                    wanted = [_action(*one) for one in more["actions"]]
                    self._decided.setdefault(now_s, []).extend(wanted)
                    self._refused.add(now_s)
                elif what in _GRANTING or what in _PLAIN or what == "reject":
                    self._decided.setdefault(now_s, []).append(_action(what, job_id, more))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise TableError(f"line {number} is none of a simulation's log ({error})") from None
        self._moments = sorted(self._decided)

    def key(self, job: Job, standing: Standing, forecasts: Forecasts) -> Key:
        """As they come: what is logged says who is next."""
        return ()

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """What was decided then."""
        actions = [
            action
            for action in self._decided.get(state.now_s, ())
            # Who could never run was rejected when it came, and nobody decided that.
            if not isinstance(action, Reject)
            or state.standing(action.job_id).phase is Phase.PENDING
        ]
        if state.now_s in self._refused:
            return actions
        for moment_s in self._moments[bisect_right(self._moments, state.now_s) :]:
            actions.append(Wake(moment_s))
            if moment_s not in self._refused:  # there it will wake for those after it
                break
        return actions


def _action(what: str, whose: Any, more: Any = None) -> Action:
    if what in _GRANTING:
        return _GRANTING[what](whose, tuple(Grant(*grant) for grant in more))
    if what == "reject":
        return Reject(whose, more)
    if what == "wake":
        return Wake(whose)
    return _PLAIN[what](whose)
