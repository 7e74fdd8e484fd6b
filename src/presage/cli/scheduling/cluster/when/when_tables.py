"""Table of predicted starts and ends, and the sentences about what they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Table, print_table, say
from presage.system.text.units import counted

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_AS_REQUESTED = "as requested"


def print_answers(found: pb.WhatIfResponse, within: Sequence[str]) -> None:
    """Print the table and the sentences."""
    if not found.answers:
        say("no job waits")
        return
    print_table(when_table(found, within))
    for line in basis_lines(found):
        say(line)


def when_table(found: pb.WhatIfResponse, within: Sequence[str]) -> Table:
    """Return a row per job and variant; ``within`` are the times of the probabilities."""
    table = Table(title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    has_variants = any(variant_text(row.variant) != _AS_REQUESTED for row in found.answers)
    for column in ("job", *(("variant",) if has_variants else ()), "start", "80 %"):
        table.add_column(column)
    for one in within:
        table.add_column(f"< {one}", justify="right", no_wrap=True)
    for column in ("end", "80 %"):
        table.add_column(column)
    for row in found.answers:
        variant = (variant_text(row.variant),) if has_variants else ()
        table.add_row(Name(row.job_id), *variant, *_cells(row, len(within)))
    return table


def _cells(row: pb.WhatIfAnswer, count: int) -> list[str]:
    """Return the start, its interval, ``count`` probabilities, the end and its interval."""
    is_predicted = row.verdict == "predicted"
    chances = [f"{one:.0%}" for one in row.start_probabilities if is_predicted]
    return [
        time_text(row.start.median_s) if row.HasField("start") else row.verdict,
        interval_text(row.start) if is_predicted else "",
        *(chances or [""] * count),
        time_text(row.end.median_s) if row.HasField("end") else "",
        interval_text(row.end) if row.HasField("end") else "",
    ]


def basis_lines(found: pb.WhatIfResponse) -> Iterator[str]:
    """Yield sentences about single answers, and about the simulations behind all of them."""
    for row in found.answers:
        if row.reason:
            part = "end" if row.HasField("start") else "start"
            of_variant = variant_text(row.variant)
            variant = "" if of_variant == _AS_REQUESTED else f", {of_variant}"
            what = "" if row.verdict in ("impossible", "started") else f"{part} unknown, because "
            yield f"{row.job_id}{variant}: {what}{row.reason}."
    yield (
        f"Median and 80 % interval of {counted(found.samples, 'simulated future')}, each of at "
        f"most {found.horizon_s / 86_400:.3g} days; times from now."
    )
    sources = [f"{number:,} by {source}" for source, number in sorted(found.run_times.items())]
    if sources:
        yield f"Run times: {', '.join(sources).replace('by none: it', 'unknown: it')}."
    for one in found.assumptions:
        yield f"Assumed: {one}."


def variant_text(variant: pb.WhatIfVariant) -> str:
    """Return what a variant changes."""
    parts = [
        counted(variant.gpus, "device") if variant.gpus else "",
        " or ".join(variant.kinds),
        f"share {variant.compute_milli / 10:g} %" if variant.compute_milli else "",
        variant.policy,
    ]
    return ", ".join(part for part in parts if part) or _AS_REQUESTED


def time_text(seconds: float) -> str:
    """Return a time from now, or before now, in a readable unit."""
    if math.isinf(seconds):
        return "later"
    if abs(seconds) < 1:
        return "now"
    unit_s, unit = _unit(abs(seconds))
    return f"{_number(abs(seconds) / unit_s)} {unit}{' ago' if seconds < 0 else ''}"


def interval_text(times: pb.TimeQuantiles) -> str:
    """Return the interval that has 80 % of the simulated times, in the unit of its end."""
    if times.low_s == times.high_s:
        return ""
    if math.isinf(times.high_s):
        return f"from {time_text(times.low_s)}"
    unit_s, unit = _unit(times.high_s)
    return f"{_number(times.low_s / unit_s)} to {_number(times.high_s / unit_s)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    return next((one for one in _UNITS if seconds >= 2 * one[0]), _UNITS[-1])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"
