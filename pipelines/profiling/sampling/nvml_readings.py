"""Conversion of the driver's raw readings to shares of a window. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Stamped = tuple[int, float]  # microseconds on the driver's clock, value

LONGEST_PERIOD_US = 1_000_000  # NVML: a sample covers 1/6 s to 1 s, depending on the product

# Field of a sample's union by its type; the types are 0 to 6.
VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def stamped(response: tuple[int, Sequence[Any]] | None) -> list[Stamped]:
    """Return the result of ``nvmlDeviceGetSamples`` in order of time."""
    if response is None:
        return []
    kind, samples = response
    field = VALUE_FIELDS[kind]
    # An unused entry of the driver's buffer has no time.
    return sorted((s.timeStamp, getattr(s.sampleValue, field)) for s in samples if s.timeStamp)


def newest_us(samples: Iterable[Stamped]) -> int:
    """Return the time of the last sample, or 0 without samples."""
    return max((time_us for time_us, _ in samples), default=0)


def time_weighted(samples: Sequence[Stamped], *, after_us: int, window_us: float) -> float | None:
    """Return the mean over the window that ends with the newest sample; None below half coverage.

    A sample covers the time since the previous one. Drivers stamp by different clocks (Unix time,
    time since boot), so the newest sample is assumed to be current, which is true up to one
    period. Samples up to ``after_us`` are from before the window.
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
    """Return the mean of values polled at times since the window's start.

    The driver reports its last period, which at first is from before the window.
    """
    stale_s = min(LONGEST_PERIOD_US / 1e6, window_s / 2)
    values = [value for at_s, value in polls if at_s >= stale_s] or [value for _, value in polls]
    return fmean(values) if values else None


def load_by_process(samples: Iterable[Any], *, after_us: int) -> dict[int, float]:
    """Return the share of the device by process, from ``nvmlDeviceGetProcessUtilization``."""
    loads: dict[int, list[float]] = {}
    for sample in samples:
        # Drivers leave stale and invalid entries in the list.
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
    """Return the share of the device that processes other than the members used.

    None if the driver reports no process, or none of the members although the device was busy: it
    counts by the host's process ids, which differ from those in a container.
    """
    if not members:
        return utilization  # the complete load of the device
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
    """Return the maximum memory of each member; for a single unlisted one, the increase."""
    found = {pid: size for pid, size in by_pid.items() if pid in members and size > 0}
    if found or len(members) != 1 or used_bytes is None or before_bytes is None:
        return found
    added_bytes = used_bytes - before_bytes
    return dict.fromkeys(members, added_bytes) if added_bytes > 0 else {}
