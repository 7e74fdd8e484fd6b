"""When the steps of a job ran on a GPU, by CUDA events.

A training loop does not wait for the GPU after every step, and a profiler that did would measure
the waiting. So the GPU itself notes the time at the end of each step, and the processor runs ahead
of it by a few steps at most: the GPU never lacks work, and the queue does not outgrow the window.
An event tells no time of day, only the time to another event. One that is recorded while the GPU
has nothing else to do ties all of them to the processor's monotonic clock, which co-located jobs
have in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

AHEAD = 2  # steps
TIES = 5  # tries to tie the clocks; beside other jobs the GPU may be late


class Event(Protocol):
    """A ``torch.cuda.Event`` with timing."""

    def record(self) -> None:
        """Note the time as soon as all work queued before is done."""

    def synchronize(self) -> None:
        """Wait for that."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to that one."""


def cuda_event() -> Event:
    """A real one, on the current device."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def step_through_on_gpu(
    run: Callable[[], None],
    start_s: float,
    deadline_s: float,
    new_event: Callable[[], Event] = cuda_event,
) -> tuple[list[tuple[float, float]], float]:
    """Step from ``start_s`` until ``deadline_s``: start and end of each step, and CPU seconds.

    As ``step_through`` on a processor: clocks are monotonic, a step begins where the one before
    ended, the last may end after the deadline, and there is at least one.
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
    # What was queued ahead may have begun after the deadline.
    return [first, *(step for step in others if step[0] < deadline_s)], cpu_s


def tied_event(new_event: Callable[[], Event]) -> tuple[Event, float]:
    """An event and the monotonic time at which the GPU came to it.

    The midpoint between asking and being told, of the try in which the two were nearest.
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
