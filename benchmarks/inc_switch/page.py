"""The page docs/benchmarks/inc_switch.md."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.inc_switch.runs import SECONDS_OF_INC, Row

_BAR = 0.1

INTRODUCTION = """# AllReduce through the software switch

Time of an AllReduce by a ring over that through the
[software switch](../jobs/inc_switch.md), for 2, 3 and 4 ranks. Written by
`python -m benchmarks.inc_switch` on {cores} CPU cores. Every rank is a process in a network
namespace with one link to a bridge, at which the switch runs. `tbf` limits both directions of each
link. The ring is that of [elastic jobs](../jobs/elastic.md), over TCP.

A rank sends 2 (N - 1) / N of its buffer in a ring, and its buffer once to the switch. So the law
is a ratio of 2 (N - 1) / N for large buffers. The target is a difference of at most {bar:.0f} %.
"""

NOTES = """
Ring and switch take turns. A time is that of the slowest rank, and the median of {repeats}
repeats, with their range. The law counts payload only, without headers and acknowledgements.

Load average, other processes of the machine included: {low:.1f} to {high:.1f} on {cores} cores.

## Limits

- Packets have 9000 bytes. With packets of 1500 bytes the processor, and not the link, is the limit
  at 200 Mbit/s on two busy cores. Faster links are not measured for that reason.
- The buffer takes {seconds:g} s through the switch by the law. The shorter it is, the more the wait
  of each hop for a core counts.
- Latency is that of the kernel; no delay is added.
"""


def page(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    cores = os.cpu_count()
    yield INTRODUCTION.format(cores=cores, bar=_BAR * 100)
    yield "| aggregator | Mbit/s | ranks | MB | ring s | switch s | ratio | law | difference | |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    for row in rows:
        difference = row.ratio / row.law - 1
        yield (
            f"| {row.implementation} | {row.mbit_per_s:g} | {row.ranks} | {row.megabytes:.1f} "
            f"| {_range(row.ring_s)} | {_range(row.switch_s)} | {row.ratio:.2f} | {row.law:.2f} "
            f"| {difference * 100:+.1f} % | {'met' if abs(difference) <= _BAR else 'missed'} |"
        )
    loads = [load for row in rows for load in row.load]
    repeats = len(rows[0].ring_s)
    yield NOTES.format(
        low=min(loads), high=max(loads), cores=cores, repeats=repeats, seconds=SECONDS_OF_INC
    ).rstrip()


def _range(times: Sequence[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
