"""The page of benchmarks/what_if."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.forecast_worth.runs import DEVICES_OF_A_NODE, TRACES
from benchmarks.what_if.probes import LOAD, Probe, Setting

INTRODUCTION = """\
# Predicted starts

This benchmark measures how often the 80 % intervals of
[`presage cluster when`](../schedulers/when.md) contain the true start of a job, and what an answer
costs. Written by `python -m benchmarks.what_if`.

A cluster of {nodes} nodes with {devices} devices each is simulated at a load of {load:g}, with the
jobs and the ground truth of the [value of forecasts](forecast_worth.md). At random times between
{first:.0%} and {last:.0%} of its submissions, waiting jobs are asked about: with the state at that
time, the forecasts of a release, and the jobs that have ended by then. The true start is known
from the rest of the simulation. All jobs are out of the domain of the shipped release; its
forecasts are used for classes of jobs that have run.
"""

COVERAGE = """
## How often do intervals contain the start?

`below` and `above` are the starts before and after the interval. "no progress" hides the progress
of running jobs, "no learning" the run times of jobs that have ended, "no arrivals" their
submissions. Probes of one time depend on each other, so the margin of a coverage is larger than
their number suggests.
"""

READING = """
If run times are known from progress and from jobs of the same class, the starts under `fifo` and
`backfill` are known almost exactly: the intervals are narrow, and contain more than 80 % of the
starts. Under policies that start later jobs first, intervals are as wide as arrivals are uncertain.
"""

COST = """
## What does an answer cost?

The question is about all waiting jobs of a cluster of 1,000 GPUs at once, with starts within a day.
Seconds are of the processor, on a machine that other programs share.
"""

COVERED = (0.75, 0.85)
_TOLERANCE_S = 1.0
_OPTIONS = {"progress": "no progress", "learns": "no learning", "arrivals": "no arrivals"}


def page(
    found: Mapping[Setting, Sequence[Probe]], speed: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    from benchmarks.what_if.probes import FIRST, LAST

    nodes = sorted({TRACES[setting.trace][2] for setting in found})
    yield INTRODUCTION.format(
        nodes=" or ".join(map(str, nodes)), devices=DEVICES_OF_A_NODE, load=LOAD, first=FIRST,
        last=LAST,
    ).rstrip()  # fmt: skip
    yield COVERAGE
    traces = {setting.trace for setting in found}
    samples = sorted({setting.samples for setting in found})
    of_samples = " or ".join(map(str, samples))
    measured = f"{len(traces)} of {len(TRACES)}"
    yield f"Each answer has {of_samples} futures. Traces measured so far: {measured}."
    yield ""
    yield from coverage_table(found)
    yield READING + COST
    yield "| policy | waiting | running | futures | CPU s |"
    yield "|---|---:|---:|---:|---:|"
    for policy, row in speed.items():
        counts = f"{row['jobs']:,.0f} | {row['running']:,.0f} | {row['samples']:.0f}"
        yield f"| {policy} | {counts} | {row['cpu_s']:.1f} |"


def coverage_table(found: Mapping[Setting, Sequence[Probe]]) -> Iterator[str]:
    """Yield a row for each setting."""
    yield (
        "| trace | policy | forecasts | what is known | starts | unknown | contained % | below % | "
        "above % | median interval h | median wait h |"
    )
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for setting, probes in found.items():
        known = [probe for probe in probes if probe.verdict == "predicted"]
        options = [text for name, text in _OPTIONS.items() if not getattr(setting, name)]
        yield (
            f"| {setting.trace} | {setting.policy} | {setting.forecast} | "
            f"{', '.join(options) or 'all'} | {len(known)} | {len(probes) - len(known)} | "
            f"{_cells(known) if known else '- | - | - | - | -'} |"
        )


def _cells(known: Sequence[Probe]) -> str:
    below = sum(one.started_s < one.low_s - _TOLERANCE_S for one in known) / len(known)
    above = sum(one.started_s > one.high_s + _TOLERANCE_S for one in known) / len(known)
    width_h = median(one.high_s - one.low_s for one in known) / 3600
    wait_h = median(one.started_s for one in known) / 3600
    shares = f"{100 * (1 - below - above):.0f} | {100 * below:.0f} | {100 * above:.0f}"
    return f"{shares} | {width_h:.1f} | {wait_h:.1f}"
