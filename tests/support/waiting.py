"""Waiting for what another process, thread or task does, where no event can be waited for.

The functions check a condition again and again. ``wait_until`` fails if the condition stays false,
``is_true_within`` returns that it did, and ``stays_true`` checks that something does not happen.
Tests of asyncio use the functions whose names begin with ``async_``.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.02


class _Deadline:
    """Time after which a condition that is still false is an AssertionError."""

    def __init__(self, within_s: float, description: object) -> None:
        self.within_s, self.description = within_s, description
        self.end_s = time.monotonic() + within_s

    def check(self, error: Exception | None = None) -> None:
        """Raise AssertionError if the time is over."""
        if time.monotonic() >= self.end_s:
            reason = self.description() if callable(self.description) else self.description
            raise AssertionError(f"not within {self.within_s:g} s: {reason} ({error})")


def wait_until(
    condition: Callable[..., object],
    within_s: float = 60.0,
    what: object = "",
    *,
    retried: type[Exception] | tuple[type[Exception], ...] = (),
    pause_s: float = PAUSE_S,
) -> Any:
    """Return the first true result of a condition, which is called again and again.

    Parameters
    ----------
    within_s : float
        Time after which an AssertionError is raised, with ``what``, or its result if it can be
        called.
    retried : exception type or tuple of them
        Exceptions that count as a result that is false.
    pause_s : float
        Time between two calls.
    """
    deadline = _Deadline(within_s, what or repr(condition))
    while True:
        error: Exception | None = None
        try:
            if found := condition():
                return found
        except retried as caught:
            error = caught
        deadline.check(error)
        time.sleep(pause_s)


async def async_wait_until(
    condition: Callable[[], object], within_s: float = 60.0, what: object = ""
) -> Any:
    """Do the same as ``wait_until`` in a task; the condition may be a coroutine function."""
    deadline = _Deadline(within_s, what or repr(condition))
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        deadline.check()
        await asyncio.sleep(PAUSE_S)


def is_true_within(
    condition: Callable[[], object], within_s: float, *, pause_s: float = PAUSE_S
) -> bool:
    """Return whether a condition becomes true in some time."""
    end_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= end_s:
            return False
        time.sleep(pause_s)
    return True


def stays_true(condition: Callable[[], object], for_s: float, *, pause_s: float = PAUSE_S) -> bool:
    """Return whether a condition stays true for some time.

    This is for what must not happen. No event shows that, and a test can only wait for as long as
    a defect would take.
    """
    return not is_true_within(lambda: not condition(), for_s, pause_s=pause_s)


async def async_stays_true(condition: Callable[[], object], for_s: float) -> bool:
    """Do the same as ``stays_true`` in a task."""
    end_s = time.monotonic() + for_s
    while condition():
        if time.monotonic() >= end_s:
            return True
        await asyncio.sleep(PAUSE_S)
    return False
