"""Step times of a job on a GPU, from CUDA events.

A training loop does not wait for the GPU after every step, and a profiler that waited would measure
the wait. Therefore the GPU records the time at the end of each step, and the processor runs at most
a few steps ahead: the GPU never lacks work, and the queue does not exceed the window. An event has
no time of day, only the time to another event. An event that is recorded while the GPU is idle
aligns all events with the processor's monotonic clock, which co-located jobs share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

AHEAD = 2  # steps
TIES = 5  # attempts to align the clocks; co-located jobs may delay the GPU


class Event(Protocol):
    """A ``torch.cuda.Event`` with timing."""

    def record(self) -> None:
        """Record the time when all previously queued work is done."""

    def synchronize(self) -> None:
        """Wait until the event is recorded."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds from this event to the other."""


def cuda_event() -> Event:
    """Return a CUDA event on the current device."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def step_through_on_gpu(
    run: Callable[[], None],
    start_s: float,
    deadline_s: float,
    new_event: Callable[[], Event] = cuda_event,
) -> tuple[list[tuple[float, float]], float]:
    """Run steps from ``start_s`` to ``deadline_s``; return step intervals and CPU seconds.

    As in ``step_through`` for a processor: clocks are monotonic, a step begins at the end of the
    previous one, the last may end after the deadline, and there is at least one.
    """
    time.sleep(max(0.0, start_s - time.monotonic()))
    cpu_before_s = time.process_time()
    origin, origin_s = tied_event(new_event)
    events = [_recorded(new_event)]
    while len(events) == 1 or time.monotonic() < deadline_s:
        run()
        events.append(_recorded(new_event))
        events[max(0, len(events) - 1 - AHEAD)].synchronize()
    events[-1].synchronize()
    cpu_s = time.process_time() - cpu_before_s
    times_s = [origin_s + origin.elapsed_time(event) / 1e3 for event in events]
    first, *others = pairwise(times_s)
    # Steps that were queued ahead may have started after the deadline.
    return [first, *(step for step in others if step[0] < deadline_s)], cpu_s


def tied_event(new_event: Callable[[], Event]) -> tuple[Event, float]:
    """Return an event and the monotonic time at which the GPU recorded it.

    The time is the midpoint between request and response of the fastest attempt.
    """
    best: tuple[float, float, Event] | None = None
    for _ in range(TIES):
        before_s = time.monotonic()
        event = _recorded(new_event)
        event.synchronize()
        after_s = time.monotonic()
        if best is None or after_s - before_s < best[0]:
            best = (after_s - before_s, (before_s + after_s) / 2, event)
    assert best is not None, "TIES >= 1"
    return best[2], best[1]


def _recorded(new_event: Callable[[], Event]) -> Event:
    event = new_event()
    event.record()
    return event
