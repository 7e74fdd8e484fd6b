"""The page of benchmarks/what_if."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.forecast_worth.runs import DEVICES_OF_A_NODE, TRACES
from benchmarks.what_if import busy_periods
from benchmarks.what_if.probes import FIRST, HORIZON_S, LAST, LOAD, Probe, Setting
from benchmarks.what_if.speed import REPEATS

INTRODUCTION = """\
# Predicted starts

This benchmark measures how often the 80 % intervals of
[`presage cluster when`](../schedulers/when.md) contain the true start of a job, and what an answer
costs. Written by `python -m benchmarks.what_if`.

A cluster of {nodes} nodes with {devices} devices each is simulated at a load of {load:g}, with the
jobs and the ground truth of the [value of forecasts](forecast_worth.md). Times are drawn uniformly
from those at which jobs wait, between {first:.0%} and {last:.0%} of the submissions, and at each
{per_moment} waiting jobs are drawn: with the state at that time, the forecasts of a release, and
the jobs that have ended by then. The true start is known from the rest of the simulation. Seeds
differ in the day with which the trace begins, in the models of its jobs, and in the drawn times.

The release is not trained on these jobs, and all of them are out of its domain: its forecasts are
used for classes of jobs that have run. Run times of jobs with equal forecasts vary by {noise:.0%}
(standard deviation of the logarithm), since those of one application on equal GPUs do: by 8 % on
average and 22 % at most on five clusters (Sinha et al., Not All GPUs Are Created Equal, SC 2022).

An answer has {samples} futures. With nine, the interval reaches from the first to the last start:
if futures and truth are equally distributed, it contains the true start with a probability of 80 %.
Futures end after {horizon:.0f} days; a later start is contained if the interval has no end.
"""

COVERAGE = """
## How often do intervals contain the start?

The target is 75 to 85 % of at least 500 starts, for 4 policies on 3 traces. `below` and `above` are
the starts before and after the interval. Starts of one seed depend on each other, so the range of
the seeds shows how certain a figure is. Jobs without an answer depend on classes that have not run.
"No end" are intervals that reach beyond the simulated time; the median interval is of the others.
"""

READING = """
Under `sjf` and `las`, later arrivals start first, so intervals are as wide as arrivals are
uncertain. Under `sjf` many have no end: long jobs may wait for more than {horizon:.0f} days, and a
part of the share is due to such intervals. The variation of run times was chosen after a run
without it, in which starts under `fifo` are known almost exactly.

Seven of the twelve shares are 75 to 85 %. Four intervals are too wide, with 86 to 89 %: under
`fifo` on vc_0e4a51, `backfill` on ITP 2 and Philly 6c71a0, and `sjf` on ITP 2. Under `las` on
Philly 6c71a0 they are too narrow (73 %): more starts are before them than after. With the laws of
earlier versions, five shares were above 85 % (93 % at most) and two below 75 % (59 and 73 %);
decision [62][62] has the changes, and what else was tried.

[62]: ../decisions/0062-predict-starts-by-simulating-from-the-present-state.md
"""

BUSY = """
## Which law of later arrivals?

The constants of the law were chosen where a start depends on nothing but later arrivals, and on
other traces ({traces} clusters and users of Microsoft): when is a queue of jobs up to some run time
empty next, at a load of {load:g}? The table has how often the range of nine futures contains the
true time ({questions} questions for each trace), the range of the traces, and their deviation from
80 % (root mean square). The law was chosen in a trial with twice as many questions, which decision
[62][62] has with all laws. Figures by `python -m benchmarks.what_if.busy_periods`.

| law | contained % | of a trace | deviation from 80 % |
|---|---:|---:|---:|
"""

KNOWLEDGE = """
## What is the knowledge worth?

The same without a part of it: "no progress" hides the progress of running jobs, "no learning" the
run times of jobs that have ended, "no arrivals" their submissions. "Exact run times" has no
variation between jobs with equal forecasts.
"""

COST = """
## What does an answer cost?

The question is about all waiting jobs of a cluster of 1,000 GPUs at once, with starts within a
day. CPU seconds are of all processes; the longest path is of the starting process and one of its
workers: the time of an answer where each process has a core. The fastest of {repeats} runs is
shown. The target is 5 s with two cores; the longest answer of two processes took {most_s:.1f} s.
"""

_TOLERANCE_S = 1.0
_OPTIONS = {"progress": "no progress", "learns": "no learning", "arrivals": "no arrivals"}
_ENOUGH = 500

Found = Mapping[Setting, Sequence[Probe]]


def page(
    found: Found, speed: Sequence[Mapping[str, Any]], busy: busy_periods.Shares, noise: float
) -> Iterator[str]:
    """Return the page as lines of Markdown.

    Parameters
    ----------
    busy : mapping
        Results of ``busy_periods``.
    noise : float
        Variation of run times in the main table.
    """
    first = next(iter(found))
    nodes = sorted({TRACES[setting.trace][2] for setting in found})
    yield INTRODUCTION.format(
        nodes=", ".join(map(str, nodes[:-1])) + f" or {nodes[-1]}" if nodes[1:] else nodes[0],
        devices=DEVICES_OF_A_NODE, load=LOAD, first=FIRST, last=LAST, noise=noise,
        per_moment=first.per_moment, samples=first.samples, horizon=HORIZON_S / 86_400,
    ).rstrip()  # fmt: skip
    plain = {one: probes for one, probes in found.items() if not _ablation(one, noise)}
    yield COVERAGE
    yield from coverage_table(plain, noise)
    yield from _shortfall(plain)
    yield READING.format(horizon=HORIZON_S / 86_400).rstrip()
    if busy:
        yield _busy_table(busy)
    if len(plain) < len(found):
        yield KNOWLEDGE
        ablated = {(one.trace, one.policy) for one in found if one not in plain}
        rows = {one: p for one, p in found.items() if (one.trace, one.policy) in ablated}
        yield from coverage_table(rows, noise)
    most_s = max(row["wall_s"] for row in speed if row["processes"] > 1)
    yield COST.format(repeats=REPEATS, most_s=most_s)
    yield (
        "| policy | processes | waiting | running | futures | CPU s | longest path s | wall s | "
        "load average |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in speed:
        counts = f"{row['jobs']:,.0f} | {row['running']:,.0f} | {row['samples']:.0f}"
        times = f"{row['cpu_s']:.1f} | {row['longest_s']:.1f} | {row['wall_s']:.1f}"
        yield f"| {row['policy']} | {row['processes']} | {counts} | {times} | {row['load']:.0f} |"


def _busy_table(busy: busy_periods.Shares) -> str:
    traces = len(next(iter(busy.values())))
    questions = busy_periods.SEEDS * busy_periods.QUESTIONS
    text = BUSY.format(traces=traces, load=LOAD, questions=questions)
    return text + "\n".join(f"| {law} | {busy_periods.row(found)} |" for law, found in busy.items())


def coverage_table(found: Found, noise: float) -> Iterator[str]:
    """Yield a row for the seeds of each setting."""
    yield (
        "| trace | policy | forecasts | what is known | seeds | starts | unknown | contained % | "
        "of a seed | below % | above % | no end % | median interval h | median wait h |"
    )
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for setting, seeds in by_setting(found).items():
        probes = [probe for one in seeds for probe in one]
        known = [_known(one) for one in seeds if _known(one)]
        cells = _cells(known) if known else "- | - | - | - | - | - | -"
        starts = sum(map(len, known))
        yield (
            f"| {setting.trace} | {setting.policy} | {setting.forecast} | "
            f"{_ablation(setting, noise) or 'all'} | {len(seeds)} | {starts} | "
            f"{len(probes) - starts} | {cells} |"
        )


def by_setting(found: Found) -> dict[Setting, list[Sequence[Probe]]]:
    """Return the probes of all seeds of each setting."""
    groups: dict[Setting, list[Sequence[Probe]]] = {}
    for setting, probes in found.items():
        groups.setdefault(replace(setting, seed=0), []).append(probes)
    traces = list(TRACES)
    return dict(sorted(groups.items(), key=lambda row: traces.index(row[0].trace)))


def _shortfall(found: Found) -> Iterator[str]:
    """Yield a sentence about the settings with fewer starts than are needed."""
    groups = by_setting(found)
    few = sum(sum(len(_known(one)) for one in seeds) < _ENOUGH for seeds in groups.values())
    if few:
        yield f"\n{few} of {len(groups)} rows have fewer than {_ENOUGH} starts: at some times less"
        yield "than ten jobs wait, or no answer is known."


def _ablation(setting: Setting, noise: float) -> str:
    """Return what a setting leaves out; "" for nothing."""
    options = [text for name, text in _OPTIONS.items() if not getattr(setting, name)]
    return ", ".join(options + (["exact run times"] if setting.noise != noise else []))


def _known(probes: Sequence[Probe]) -> list[Probe]:
    return [probe for probe in probes if probe.verdict == "predicted"]


def _cells(seeds: Sequence[Sequence[Probe]]) -> str:
    known = [one for probes in seeds for one in probes]
    below = sum(map(_is_below, known)) / len(known)
    above = sum(map(_is_above, known)) / len(known)
    each = [_contained(probes) for probes in seeds]
    endless = sum(one.high_s == math.inf for one in known) / len(known)
    ends = [one.high_s - one.low_s for one in known if one.high_s < math.inf]
    width_h = median(ends) / 3600 if ends else math.inf
    wait_h = median(one.started_s for one in known) / 3600
    shares = f"{_contained(known):.0f} | {min(each):.0f} to {max(each):.0f}"
    outside = f"{100 * below:.0f} | {100 * above:.0f} | {100 * endless:.0f}"
    return f"{shares} | {outside} | {width_h:.1f} | {wait_h:.1f}"


def _contained(probes: Sequence[Probe]) -> float:
    inside = sum(not (_is_below(one) or _is_above(one)) for one in probes)
    return 100 * inside / len(probes)


def _is_below(probe: Probe) -> bool:
    return probe.started_s < probe.low_s - _TOLERANCE_S


def _is_above(probe: Probe) -> bool:
    return probe.started_s > probe.high_s + _TOLERANCE_S
