"""The driver's raw readings as shares of a window: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Stamped = tuple[int, float]  # microseconds on a clock of the driver's own, value

LONGEST_PERIOD_US = 1_000_000  # NVML: a sample tells of 1/6 s to 1 s, depending on the product

# Field of a sample's union by its type; the types are 0 to 6.
VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def stamped(answer: tuple[int, Sequence[Any]] | None) -> list[Stamped]:
    """What ``nvmlDeviceGetSamples`` answers, in order of time."""
    if answer is None:
        return []
    kind, samples = answer
    field = VALUE_FIELDS[kind]
    # An unused place of the driver's buffer has no time.
    return sorted((s.timeStamp, getattr(s.sampleValue, field)) for s in samples if s.timeStamp)


def newest_us(samples: Iterable[Stamped]) -> int:
    """Time of the last sample, 0 if there is none."""
    return max((time_us for time_us, _ in samples), default=0)


def time_weighted(samples: Sequence[Stamped], *, after_us: int, window_us: float) -> float | None:
    """Mean over the window that ends with the newest sample; None if half of it is not covered.

    A sample tells of the time since the one before. Which clock the driver stamps by differs
    (Unix time, time since boot), so the newest sample is taken to be of now, which it is but for
    one period. What is stamped up to ``after_us`` was there before the window began.
    """
    fresh = [sample for sample in samples if sample[0] > after_us]
    end_us = newest_us(fresh)
    before_us = after_us
    total = covered_us = 0.0
    for time_us, value in fresh:
        begin_us = max(before_us, time_us - LONGEST_PERIOD_US, end_us - window_us)
        length_us = max(0.0, time_us - begin_us)
        total, covered_us, before_us = total + value * length_us, covered_us + length_us, time_us
    return total / covered_us if covered_us >= window_us / 2 else None


def later_mean(polls: Sequence[tuple[float, float]], *, window_s: float) -> float | None:
    """Mean of values polled at times since the window's start.

    The driver answers with its last period, which at first is from before the window.
    """
    stale_s = min(LONGEST_PERIOD_US / 1e6, window_s / 2)
    values = [value for at_s, value in polls if at_s >= stale_s] or [value for _, value in polls]
    return fmean(values) if values else None


def load_by_process(samples: Iterable[Any], *, after_us: int) -> dict[int, float]:
    """Share of the device by process id, of what ``nvmlDeviceGetProcessUtilization`` answers."""
    loads: dict[int, list[float]] = {}
    for sample in samples:
        # Drivers leave stale and senseless entries in the list.
        if sample.timeStamp > after_us and sample.pid and sample.smUtil <= 100:
            loads.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
    return {pid: fmean(values) for pid, values in loads.items()}


def foreign_share(
    loads: Mapping[int, float] | None,
    *,
    members: frozenset[int],
    listed: Collection[int],
    utilization: float | None,
) -> float | None:
    """Share of the device that others than the members used.

    None where the driver tells of no process, or where it tells of none of the members though the
    device was busy: it counts by the host's process ids, which in a container are not ours.
    """
    if not members:
        return utilization  # all that the device did
    if utilization == 0.0:
        return 0.0
    if loads is None or not members & {*listed, *loads}:
        return None
    return min(1.0, sum(load for pid, load in loads.items() if pid not in members))


def members_memory(
    by_pid: Mapping[int, int],
    *,
    members: frozenset[int],
    used_bytes: int | None,
    before_bytes: int | None,
) -> dict[int, int]:
    """Most memory of each member; of a single one that is not listed, what came on top."""
    found = {pid: size for pid, size in by_pid.items() if pid in members and size > 0}
    if found or len(members) != 1 or used_bytes is None or before_bytes is None:
        return found
    added_bytes = used_bytes - before_bytes
    return dict.fromkeys(members, added_bytes) if added_bytes > 0 else {}
