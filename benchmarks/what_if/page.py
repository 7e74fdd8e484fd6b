"""The page of benchmarks/what_if."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.what_if.probes import LOAD, Probe, Setting

INTRODUCTION = """\
# When will it start? Coverage and cost

Draft. Written by `python -m benchmarks.what_if`.
"""

COVERED = (0.75, 0.85)
_TOLERANCE_S = 1.0


def page(
    found: Mapping[Setting, Sequence[Probe]], speed: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield INTRODUCTION
    yield f"Load {LOAD}"
    yield from coverage_table(found)
    yield from ("", "## Cost", "", "| policy | jobs | samples | CPU s |", "|---|---:|---:|---:|")
    for policy, row in speed.items():
        yield f"| {policy} | {row['jobs']:,.0f} | {row['samples']:.0f} | {row['cpu_s']:.2f} |"


def coverage_table(found: Mapping[Setting, Sequence[Probe]]) -> Iterator[str]:
    """Yield a row for each setting."""
    yield "| trace | policy | known | probes | covered % | below | above | interval h | wait h |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    for setting, probes in found.items():
        default = Setting(setting.trace, setting.policy)
        same = replace(
            default, seed=setting.seed, moments=setting.moments, samples=setting.samples,
            per_moment=setting.per_moment,
        )  # fmt: skip
        options = [
            name
            for name in ("progress", "learns", "arrivals")
            if getattr(setting, name) != getattr(same, name)
        ]
        known = [probe for probe in probes if probe.verdict == "predicted"]
        label = ", ".join(f"no {one}" for one in options) or "all"
        row = f"| {setting.trace} | {setting.policy} | {label} | {len(known)} |"
        if not known:
            yield f"{row} - | - | - | - | - |"
            continue
        below = sum(one.started_s < one.low_s - _TOLERANCE_S for one in known) / len(known)
        above = sum(one.started_s > one.high_s + _TOLERANCE_S for one in known) / len(known)
        width_h = median(one.high_s - one.low_s for one in known) / 3600
        wait_h = median(one.started_s for one in known) / 3600
        cells = f"{100 * (1 - below - above):.0f} | {100 * below:.0f} | {100 * above:.0f}"
        yield f"{row} {cells} | {width_h:.1f} | {wait_h:.1f} |"
