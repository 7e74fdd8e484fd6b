"""Summary of a trace of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from presage.system.text.terminal import Table, print_table, say

if TYPE_CHECKING:
    from presage.schedulers.traces.summary import Summary

_MOST_SHOWN = 12  # values of a column
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def print_summary(found: Summary) -> None:
    """Print the load, arrivals, gangs, durations and users of a trace."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("jobs", f"{found.jobs:,}")
    table.add_row("span", _time(found.span_s))
    if found.devices_busy is not None:
        table.add_row("offered load", f"{found.devices_busy:,.1f} devices busy")
    if found.arrival_dispersion is not None:
        hourly = found.jobs / found.span_s * 3600
        table.add_row(
            "arrivals", f"{hourly:,.1f} an hour, index of dispersion {found.arrival_dispersion:.1f}"
        )
    durations = (f"{name} {_time(seconds)}" for name, seconds in found.duration_s.items())
    table.add_row("durations", ", ".join(durations))
    for name, counts in (("GPUs", found.gangs), ("users", found.users), ("models", found.models)):
        if counts:
            table.add_row(name, _shares(counts, found.jobs))
    print_table(table)
    say_left_out(found.left_out)


def say_left_out(left_out: Mapping[str, int]) -> None:
    """Print how many rows of a file are not jobs, and why, if there are any."""
    if left_out:
        reasons = ", ".join(f"{rows:,} {why}" for why, rows in left_out.items())
        say(f"{sum(left_out.values()):,} rows left out: {reasons}")


def _shares(counts: Mapping[str, int] | Mapping[int, int], jobs: int) -> str:
    parts = [f"{name}: {count:,} ({count / jobs:.1%})" for name, count in counts.items()]
    more = len(counts) - _MOST_SHOWN
    return ", ".join(parts[:_MOST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _time(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"
