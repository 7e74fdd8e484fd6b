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
same turn. The target is {bar:.0f} us.

"With an arbiter" means that its address is set, so that AllReduces of 64 KiB and more are numbered,
decided and reported, and epochs are exchanged; all run by ring. "busy" is the processor time of the
calling thread over that with gloo, which other processes of the machine lengthen less.
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
At a load of 2 to 4 the time over gloo without an arbiter was 5 to 17 us for 1 KB and 80 KB.
"""


def page(unaddressed: dict[str, Any], addressed: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    cores = os.cpu_count()
    ranks = unaddressed["rows"][0]["ranks"]
    yield INTRODUCTION.format(ranks=ranks, cores=cores, bar=_BAR_US)
    case = "over gloo us | ratio | busy us | |"
    yield f"| KB | gloo us | no arbiter: {case} with one: {case}"
    yield "|---:|---:|---:|---:|---:|---|---:|---:|---:|---|"
    for one, other in zip(unaddressed["rows"], addressed["rows"], strict=True):
        yield (
            f"| {one['size'] / 1000:g} | {one['median_us']['gloo']:.0f} "
            f"| {_over(one)} | {_over(other)} |"
        )
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


def _over(row: dict[str, Any]) -> str:
    over = row["over_us"]["backend"]
    ratio = 1 + over / row["median_us"]["gloo"]
    return (
        f"{over:+.1f} | {ratio:.2f} | {row['busy_us']:+.1f} "
        f"| {'met' if over <= _BAR_US else 'missed'}"
    )
