"""Table of predicted starts and ends, and the sentences about what they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Table
from presage.system.text.units import counted

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def when_table(found: pb.WhatIfResponse, within: Sequence[str]) -> Table:
    """Return a row per job and variant; ``within`` are the times of the probabilities."""
    table = Table(title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    has_variants = any(_variant(row) != _AS_REQUESTED for row in found.answers)
    for column in ("job", *(("variant",) if has_variants else ()), "start", "80 % interval"):
        table.add_column(column, justify="left", no_wrap=column != "variant")
    for one in within:
        table.add_column(f"in {one}", justify="right", no_wrap=True)
    for column in ("end", "80 % interval", "note"):
        table.add_column(column)
    notes = any(row.reason for row in found.answers)
    for row in found.answers:
        chances = [f"{one:.0%}" for one in row.start_probabilities] or [""] * len(within)
        table.add_row(
            Name(row.job_id),
            *((_variant(row),) if has_variants else ()),
            _start(row),
            interval_text(row.start)
            if row.HasField("start") and row.verdict == "predicted"
            else "",
            *(chances if row.verdict == "predicted" else [""] * len(within)),
            time_text(row.end.median_s) if row.HasField("end") else "",
            interval_text(row.end) if row.HasField("end") else "",
            row.reason,
        )
    if not notes:
        table.columns.pop()
    return table


def basis_lines(found: pb.WhatIfResponse) -> Iterator[str]:
    """Yield sentences about the simulations behind the answers."""
    days = found.horizon_s / DAY_S
    yield (
        f"From {counted(found.samples, 'simulated future')} of at most {days:g} days; times from "
        "now."
    )
    sources = [f"{number:,} by {source}" for source, number in sorted(found.run_times.items())]
    if sources:
        yield f"Run times of jobs: {', '.join(sources)}."
    for one in found.assumptions:
        yield f"Assumed: {one}."


def interval_text(times: pb.TimeQuantiles) -> str:
    """Return the interval that has 80 % of the simulated times."""
    if times.low_s == times.high_s:
        return "" if math.isinf(times.low_s) else time_text(times.low_s)
    return f"{time_text(times.low_s)} to {time_text(times.high_s)}"


def time_text(seconds: float) -> str:
    """Return a time from now, or before now, in a readable unit."""
    if math.isinf(seconds):
        return "later"
    if seconds < 0:
        return f"{_length(-seconds)} ago"
    return "now" if seconds < 1 else _length(seconds)


def _length(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"


_AS_REQUESTED = "as requested"


def _variant(row: pb.WhatIfAnswer) -> str:
    variant = row.variant
    parts = [
        counted(variant.gpus, "device") if variant.gpus else "",
        " or ".join(variant.kinds),
        f"share {variant.compute_milli / 10:g} %" if variant.compute_milli else "",
        f"policy {variant.policy}" if variant.policy else "",
    ]
    return ", ".join(part for part in parts if part) or _AS_REQUESTED


def _start(row: pb.WhatIfAnswer) -> str:
    if row.HasField("start"):
        return time_text(row.start.median_s)
    return row.verdict
