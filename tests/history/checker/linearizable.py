"""Linearizability of a history against a sequential model.

Just-in-time linearization with memoisation (Lowe, "Testing for linearizability", 2017), a form of
the search of Wing and Gong that Knossos and porcupine use as well: sweep over invocations and
completions by time, and keep every configuration that is still possible. An operation without a
completion may take effect at any time after its invocation, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Step = Callable[[Any, Any], Iterable[Any]]


class Call(NamedTuple):
    """An operation on one key; ``end`` is None where the outcome is unknown."""

    begin: int
    end: int | None
    content: Any


class NotLinearizable(NamedTuple):
    """The first completion that no order explains, and the states that were possible before it."""

    call: Call
    states: tuple[Any, ...]


class _Configuration(NamedTuple):
    """A state, and the open calls that led to it: ``done`` will complete, ``spent`` never does.

    Of two with the same state and ``done`` the one that has ``spent`` less makes the other
    needless: what never completes may as well take effect later, or never.
    """

    state: Any
    done: frozenset[int]
    spent: frozenset[int]


def check_linearizable(
    calls: Sequence[Call], step: Callable[[State, Any], Iterable[State]], initial: State
) -> NotLinearizable | None:
    """Return the first completion that contradicts every order; None if the history is sound.

    Parameters
    ----------
    step : callable
        States that an operation may lead to from a state; none where it cannot take effect there.
    """
    possible = [_Configuration(initial, frozenset(), frozenset())]
    open_calls: set[int] = set()
    for _, is_end, index in _in_time(calls):
        if not is_end:
            open_calls.add(index)
            continue
        after = _with_effect(index, possible, open_calls, calls, step)
        if not after:
            states = {one.state for one in possible}
            return NotLinearizable(calls[index], tuple(sorted(states, key=repr)))
        possible = after
        open_calls.discard(index)
    return None


def _in_time(calls: Sequence[Call]) -> list[tuple[int, bool, int]]:
    """Invocations and completions; at equal times invocations first, so that the calls overlap."""
    moments = [(call.begin, False, index) for index, call in enumerate(calls)]
    moments += [(call.end, True, index) for index, call in enumerate(calls) if call.end is not None]
    return sorted(moments)


def _with_effect(
    index: int,
    possible: Sequence[_Configuration],
    open_calls: set[int],
    calls: Sequence[Call],
    step: Step,
) -> list[_Configuration]:
    """Configurations in which an operation has taken effect, after any of those that are open."""
    found: list[_Configuration] = []
    least: dict[tuple[Any, frozenset[int]], list[frozenset[int]]] = {}
    todo = deque(sorted(possible, key=lambda one: len(one.spent)))
    while todo:
        one = todo.popleft()
        spent = least.setdefault((one.state, one.done), [])
        if any(less <= one.spent for less in spent):
            continue
        spent.append(one.spent)
        if index in one.done:
            found.append(one._replace(done=one.done - {index}))
            continue
        for other in _next_calls(one, open_calls, calls):
            may_not_complete = calls[other].end is None
            for state in step(one.state, calls[other].content):
                if not may_not_complete:
                    todo.append(_Configuration(state, one.done | {other}, one.spent))
                elif state != one.state:
                    todo.append(_Configuration(state, one.done, one.spent | {other}))
    return found


def _next_calls(one: _Configuration, open_calls: set[int], calls: Sequence[Call]) -> Iterable[int]:
    """Open calls that have not taken effect; of equal ones that may not complete the first."""
    seen: set[Any] = set()
    for other in sorted(open_calls - one.done - one.spent):
        if calls[other].end is None:
            if calls[other].content in seen:
                continue
            seen.add(calls[other].content)
        yield other
