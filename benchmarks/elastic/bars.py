"""Targets of elastic training, with the measured values."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """Target of a measured value; ``is_met`` is None if there is no value."""

    name: str
    measured: str
    is_met: bool | None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def load_note(loads: Sequence[float]) -> str:
    """Return a sentence with the range of the load average of a measurement."""
    note = f"Load average, own processes included: {min(loads):.1f} to {max(loads):.1f}"
    cores = os.cpu_count() or 1
    if max(loads) > cores:
        note += f" on {cores} cores, so processes waited for a core"
    return note + "."


def ratio(systems: Mapping[str, Any], name: str, kind: str) -> float | None:
    """Return a system's p50 of a change over that of Presage; None without values."""
    both = [systems[name][kind], systems["presage"][kind]]
    if not all(both):
        return None
    theirs, ours = (percentile(values, 0.5) for values in both)
    return theirs / ours


def bars(rows: Mapping[str, Any]) -> Iterator[Bar]:
    """Yield the targets, from the results of all measurements."""
    planned = [v for values in rows["planned"]["result"].values() for v in values]
    for share, most_ms in ((0.5, 60), (0.99, 250)):
        yield _at_most(f"pause of a planned change, p{share * 100:.0f}", planned, share, most_ms)
    killed = rows["killed"]["result"].values()
    kills = [v for one in killed for v in one["pauses"]]
    yield _at_most("pause after a kill, p99", kills, 0.99, 500)
    hangs, count = sum(one["hangs"] for one in killed), len(kills)
    yield Bar("no hang in 200 kills", f"{hangs} of {count + hangs}", hangs == 0 and count >= 200)
    found = rows["step_time"]["result"]
    ours, ddp = (statistics.median(one[0] for one in found[key]) for key in ("elastic", "ddp"))
    over = ours / ddp - 1
    yield Bar("step of two workers, at most 2 % over DDP", f"{over * 100:+.0f} %", over <= 0.02)
    systems = rows["peers"]["result"]["systems"]
    yield _faster("torchrun", "grow", 50, systems)
    yield _faster("torchrun", "kill", 50, systems)
    yield _faster("torchft", "grow", 1, systems)
    yield _faster("torchft_readme", "grow", 1, systems)
    yield _faster("torchft", "kill", 5, systems)
    yield _faster("torchft_readme", "kill", 5, systems)


def bar_table(rows: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of all targets."""
    yield "| target | measured | |"
    yield "|---|---|---|"
    verdicts = {True: "met", False: "missed", None: "-"}
    for name, measured, is_met in bars(rows):
        yield f"| {name} | {measured} | {verdicts[is_met]} |"
    yield ""


def _at_most(name: str, values: Sequence[float], share: float, most_ms: float) -> Bar:
    found_ms = percentile(values, share) * 1000
    return Bar(f"{name}, at most {most_ms:g} ms", f"{found_ms:.0f} ms", found_ms <= most_ms)


def _faster(name: str, kind: str, least: float, systems: Mapping[str, Any]) -> Bar:
    """Return the target of a ratio of medians."""
    change = {"grow": "growing", "kill": "a kill"}[kind]
    system = {"torchft": "torchft with short time-outs", "torchft_readme": "torchft of its README"}
    label = f"{change}, {f'{least:g} x faster' if least > 1 else 'no slower'} than"
    label = f"{label} {system.get(name, name)}"
    over = ratio(systems, name, kind)
    if over is None:
        return Bar(label, "no value", None)
    return Bar(label, f"{over:.3g} x", over >= least)
