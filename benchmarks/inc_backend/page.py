"""The page docs/benchmarks/inc_backend.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_BAR_US, _DECISION_BAR_US = 15.0, 5.0

INTRODUCTION = """# The backend presage_inc against gloo

Time that the [backend](../jobs/inc_torch.md) adds to an AllReduce of gloo. Written by
`python -m benchmarks.inc_backend` for {ranks} ranks on {cores} CPU cores. All ways take turns, each
as often at each place of the order. "Over gloo" is the median difference to the call of gloo in the
same turn. The target is {bar:.0f} us. The floor is a process group of three lines of Python that
passes the call on to gloo.

"With an arbiter" means that its address is set, so that AllReduces of 64 KiB and more are numbered,
decided and reported, and epochs are exchanged; all run by ring. "busy" is the processor time of the
calling thread over that with gloo. The elapsed time varies more, because a rank sleeps until its
peer has sent, and how soon the system wakes it depends on when it fell asleep.
"""

DECISION = """
## How long does a decision take?

The target is {bar:.0f} us. There is no RPC in a decision.

| decision | us | ratio to the target |
|---|---:|---:|"""

EPOCHS = """
## What does the agreement on views cost?

Time over gloo of ways to get the smallest epoch of all ranks with each AllReduce, in us:

| KB | one for each epoch, appended to the data | second AllReduce with the data | after the data |
|---:|---:|---:|---:|"""

NOTES = """
Appending ones copies the data twice. An exchange at the same time takes processor time, which
these two cores lack. The backend exchanges epochs with the data of every 16th AllReduce of 256 KiB
and less, and more often with larger ones, up to each of 4 MiB.
[Decision 50](../decisions/0050-a-backend-that-counts-rings.md) has the reasons.

Load average, other processes of the machine included: {low:.1f} to {high:.1f} on {cores} cores.

What was tried for the time without an arbiter: with checks inlined in the usual case, "busy" fell
from 47 to 39 us. Holding the work of gloo until the next call costs nothing, and a lock 7 us. The
same Python code takes about 10 us in a loop; after a sleep, in which the other rank used the core,
its instructions and data are no longer in the caches. On a faster day of the same machine the time
over gloo was 5 to 17 us for 1 KB and 80 KB.
"""


def page(unaddressed: dict[str, Any], addressed: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    cores = os.cpu_count()
    ranks = unaddressed["rows"][0]["ranks"]
    yield INTRODUCTION.format(ranks=ranks, cores=cores, bar=_BAR_US)
    yield "| KB | gloo us | | over gloo us | ratio | busy us | |"
    yield "|---:|---:|---|---:|---:|---:|---|"
    for one, other in zip(unaddressed["rows"], addressed["rows"], strict=True):
        yield _line(one, "floor", "floor")
        yield _line(one, "backend", "no arbiter")
        yield _line(other, "backend", "with an arbiter")
    yield DECISION.format(bar=_DECISION_BAR_US)
    names = {
        "lookup_us": "lookup in the view",
        "counted_us": "AllReduce by ring that is only counted",
        "full_us": "full step of the state machine, start and end",
    }
    for name, text in names.items():
        yield f"| {text} | {unaddressed[name]:.1f} | {unaddressed[name] / _DECISION_BAR_US:.2f} |"
    yield EPOCHS
    for row in unaddressed["rows"]:
        over = row["over_us"]
        yield (
            f"| {row['size'] / 1000:g} | {over['appended']:+.0f} | {over['concurrent']:+.0f} "
            f"| {over['after']:+.0f} |"
        )
    loads = (unaddressed["load"], addressed["load"])
    yield NOTES.format(low=min(loads), high=max(loads), cores=cores).rstrip()


def _line(row: dict[str, Any], way: str, title: str) -> str:
    gloo, over = row["median_us"]["gloo"], row["over_us"][way]
    busy = row["busy_us"][way] - row["busy_us"]["gloo"]
    verdict = "" if way == "floor" else "met" if over <= _BAR_US else "missed"
    return (
        f"| {row['size'] / 1000:g} | {gloo:.0f} | {title} | {over:+.1f} | {1 + over / gloo:.2f} "
        f"| {busy:+.1f} | {verdict} |"
    )
