"""Sequential models: a job as clients see it, and whether a node is drained.

A job's controller moves it on by itself, so a state is what the job has reached at least; a read
may find any state that can follow. Clients submit, cancel and read.

==================================  ==========================================================
state                               meaning
==================================  ==========================================================
``None``                            no such job
``("live", attempt, rank)``         it got at least so far
``("cancelled", attempt, rank)``    a cancellation took effect, or the job was over before it
``("over", attempt, phase)``        a client has read a terminal phase
==================================  ==========================================================

Within an attempt a job is PLACED, RUNNING (or PAUSED), LEAVING, and WAITING for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

WAITING, PLACED, RUNNING, PAUSED, LEAVING = "WAITING", "PLACED", "RUNNING", "PAUSED", "LEAVING"
FINISHED, FAILED, CANCELLED, REJECTED = "FINISHED", "FAILED", "CANCELLED", "REJECTED"
TERMINAL = frozenset((FINISHED, FAILED, CANCELLED, REJECTED))
RANKS = {PLACED: 0, RUNNING: 1, PAUSED: 1, LEAVING: 2, WAITING: 3}
ABSENT = "ABSENT"

JobState = tuple[str, int, Any] | None
_NEW: JobState = ("live", 0, RANKS[WAITING])


def job_step(state: JobState, content: tuple[Any, ...]) -> Iterable[JobState]:
    """States that an operation on a job may lead to.

    ``content`` is ("submit", result) with a result of "new", "known" or "unknown"; ("cancel",
    result) with "ok", "absent" or "unknown"; or ("read", phase, attempt).
    """
    what, result = content[0], content[1]
    if what == "submit":
        return _submitted(state, result)
    if what == "cancel":
        return _cancelled(state, result)
    return _read(state, result, content[2])


def _submitted(state: JobState, result: str) -> Iterable[JobState]:
    if state is None:
        return () if result == "known" else (_NEW,)
    return () if result == "new" else (state,)


def _cancelled(state: JobState, result: str) -> Iterable[JobState]:
    if state is None:
        return (None,) if result in ("absent", "unknown") else ()
    if result == "absent":
        return ()
    return (("cancelled", *state[1:]),) if state[0] == "live" else (state,)


def _read(state: JobState, phase: str, attempt: int) -> Iterable[JobState]:
    if phase == ABSENT or state is None:
        return (None,) if phase == ABSENT and state is None else ()
    what, reached, rank = state
    if what == "over":
        return (state,) if (reached, rank) == (attempt, phase) else ()
    if phase in TERMINAL:
        possible = attempt >= reached and (phase != CANCELLED or what == "cancelled")
        return (("over", attempt, phase),) if possible else ()
    if what == "cancelled" and phase != LEAVING:
        return ()
    found = (attempt, RANKS[phase])
    return ((what, *found),) if found >= (reached, rank) else ()


def drained_step(state: bool, content: tuple[str, bool]) -> Iterable[bool]:
    """States of a node's flag: ("set", value), ("maybe", value) or ("read", value)."""
    what, value = content
    if what == "read":
        return (state,) if state == value else ()
    return (value,)
