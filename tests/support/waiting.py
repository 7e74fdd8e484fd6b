"""Waiting for what another process or thread does, where no event can be waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.02


def wait_until(
    condition: Callable[..., object],
    within_s: float = 60.0,
    what: object = "",
    *,
    retried: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Return the first true result of a condition, which is called again and again.

    Parameters
    ----------
    within_s : float
        Time after which an AssertionError is raised, with ``what``, or its result if it can be
        called.
    retried : exception type or tuple of them
        Exceptions that count as a result that is false.
    """
    end_s = time.monotonic() + within_s
    while True:
        error: Exception | None = None
        try:
            if found := condition():
                return found
        except retried as caught:
            error = caught
        if time.monotonic() >= end_s:
            reason = what() if callable(what) else what or condition
            raise AssertionError(f"not within {within_s:g} s: {reason} ({error})")
        time.sleep(PAUSE_S)
