"""The page of benchmarks/forecast_worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from benchmarks.forecast_worth.runs import (
    DEVICES_OF_A_NODE,
    FOUR,
    LOADS,
    NOISES,
    NOISY,
    RESTART_S,
    RUNS,
    SEEDS,
    TRACES,
    TWICE,
    Run,
    traced,
)
from benchmarks.markdown import KEPT, kept_row
from presage.schedulers.simulator.results.confidence import mean_with_margin

INTRODUCTION = """\
# Value of forecasts

This benchmark compares scheduling policies with and without forecasts, on three traces at two
loads. Written by `python -m benchmarks.forecast_worth`.

The forecasts are:

- `none`: no forecasts.
- `shipped`: the shipped release.
- `retrained`: releases that were trained on other families of jobs on the same card, as one
  `dvc repro` makes from an operator's own measurements. The training data of a job's forecasts
  contain no job of its family.
- `table`: a table of measurements.
- `oracle`: the ground truth.

The ground truth of memory, utilization and slowdowns is Lucid's measurement of 44 training jobs,
solo and in pairs, on an RTX 3090 with 24 GB; they are not in the training data of the shipped
release. The slowdown of three or four jobs on a device is the sum of the pairwise slowdowns. For
each of {seeds} seeds, each job's model is drawn at random, and so is the time at which the trace
starts (earlier jobs are appended at the end). The trace gives solo run times and numbers of
devices. A restart costs {restart_s:g} s.

A job uses the measured memory, whatever its allocation. If the device has less free memory 30 s
after its start, it runs out of memory and returns to the queue. The number of iterations of each
job is assumed to be known: forecasts err in step time, utilization and memory.

Figures are means over the seeds; ± gives half of the 95 % confidence interval (Student's t) of the
average JCT. Load is requested devices over existing devices. "unfair" jobs took longer than they
would on their part of the cluster (finish-time fairness). "packing, twice over" allocates compute
twice over and relies on predicted slowdowns for co-location.
"""

IN_SHORT = """\
## Summary

The table gives the average JCT in hours. In brackets is the share of the difference between `fifo`
and the policy with the oracle that forecasts achieve, per seed:
"""

CONCLUSIONS = """
Run times are by far the most valuable forecasts, and releases predict them well enough; so does the
shipped release, for which all of these jobs are out of domain. Forecasts of co-located jobs are
worth less, but sharing shortens the JCT in all six cases. A share above 100 % means that the oracle
is not the optimum of `packing`: with lower forecasts it co-locates more jobs, and two jobs rarely
fill a device's memory. **Memory bounds miss their goal**: jobs take more than allocated more often
than the accepted risk says, see [accepted and observed risk](#accepted-and-observed-risk).
"""

RISKS = """
## Accepted and observed risk

Up to four jobs share a device, with compute allocated twice over and memory allocated up to the
upper bound at the accepted risk, at the higher load. The table gives the share of allocations of a
part of a device in which the job used more memory than allocated, out-of-memory failures per job,
and jobs that failed for good, after eight such failures. The goal is a share within a factor of 1.5
of the accepted risk: 3.3 to 7.5, 6.7 to 15 and 33 to 75 %. **The releases of 2026-11-27 reach it at
5 % only.** At 10 % the retrained ones allocate too little too often, at 50 % too rarely. Each of
them is trained on one half of the families; over 30 random halves, the mean share of solo runs
above the bound is within the goal ([causes and
attempts](../decisions/0060-calibrate-intervals-on-groups-that-were-left-out.md)). The shipped one,
which has no memory of a GPU in training, allocates too little at both:
"""

NOISE = """
## Required accuracy

The oracle's forecasts are multiplied by log-normal factors with the given median and spread of the
logarithm ({trace}, load {load:g}). With a spread of 0.25, two thirds are within 28 %; with 1,
within a factor of 2.7. A factor that is the same for all jobs changes no order, so it does not
change `sjf`. Average JCT in hours:
"""

KEPT_ROWS = """\
Rows and figures with † are of an earlier run, with an earlier release; those of `none`, `table` and
`oracle` do not depend on it.
"""

Outcomes = Mapping[Run, Mapping[str, Any]]
Alike = Sequence[Mapping[str, Any]]  # outcomes of one row by seed

_COLUMNS = {
    "JCT h": ("average_jct_s", 3600, 1), "median": ("median_jct_s", 3600, 1),
    "99 %": ("p99_jct_s", 3600, 0), "waiting h": ("average_queue_s", 3600, 1),
    "makespan h": ("makespan_s", 3600, 0), "slowdown": ("average_slowdown", 1, 2),
    "in use %": ("device_utilization", 0.01, 0), "unfair %": ("unfair_fraction", 0.01, 0),
    "99 % unfairness": ("p99_unfairness", 1, 1), "out of memory": ("overflows", 1, 1),
}  # fmt: skip


class MissingOutcomesError(LookupError):
    """Outcomes that a row needs were not simulated."""


def page(outcomes: Outcomes, earlier: str | None = None) -> Iterator[str]:
    """Return the page as lines of Markdown.

    Parameters
    ----------
    outcomes : mapping of Run to mapping
        Metrics of each simulation.
    earlier : str, optional
        Page of an earlier run, whose rows are kept where ``outcomes`` lacks theirs.

    Raises
    ------
    MissingOutcomesError
        If outcomes are missing and there is no earlier page.
    """
    yield INTRODUCTION.format(seeds=len(SEEDS), restart_s=RESTART_S)
    if earlier is not None:
        yield KEPT_ROWS
    yield "| trace | jobs | devices |"
    yield "|---|---:|---:|"
    for name, (_, _, nodes) in TRACES.items():
        jobs = len(traced(name)[0].jobs)
        yield f"| {name} | {jobs:,} | {nodes * DEVICES_OF_A_NODE} |"
    yield ""
    yield from _gains(outcomes, earlier)
    for trace in TRACES:
        for load in LOADS:
            yield from _schedules(outcomes, earlier, trace, load)
    yield from _risks(outcomes, earlier)
    yield from _noises(outcomes, earlier)


def _schedules(outcomes: Outcomes, earlier: str | None, trace: str, load: float) -> Iterator[str]:
    heading = f"## {trace}, load {load:g}"
    yield from ("", heading, "")
    yield f"| policy | forecasts | {' | '.join(_COLUMNS)} |"
    yield f"|---|---|{'---:|' * len(_COLUMNS)}"
    for policy, forecast, risk in RUNS:
        alike = partial(_outcomes, outcomes, trace, load, policy, forecast, risk)
        key = [_policy_name(policy), _label(forecast, risk)]
        yield _row(key, _schedule_cells, alike, heading, earlier)


def _schedule_cells(alike: Alike) -> list[str]:
    return [
        _mean(alike, *column, margin=column[0] == "average_jct_s") for column in _COLUMNS.values()
    ]


def _row(
    key: list[str],
    cells: Callable[[Alike], list[str]],
    alike: Callable[[], Alike],
    heading: str,
    earlier: str | None,
) -> str:
    """Return a row; without outcomes, that of the earlier page with the same first cells."""
    try:
        return f"| {' | '.join(key + cells(alike()))} |"
    except MissingOutcomesError:
        if earlier is None:
            raise
    return f"| {' | '.join(kept_row(earlier, heading, key))} |"


def _gains(outcomes: Outcomes, earlier: str | None) -> Iterator[str]:
    yield IN_SHORT
    yield (
        "| trace | load | fifo | sjf: shipped | retrained | oracle "
        "| packing: shipped | retrained | oracle |"
    )
    yield f"|---|---:|{'---:|' * 7}"
    for trace in TRACES:
        for load in LOADS:
            fifo = partial(_outcomes, outcomes, trace, load, "fifo", "none", 0.1)
            cells = partial(_gain_cells, outcomes, earlier, trace, load)
            yield _row([trace, f"{load:g}"], cells, fifo, IN_SHORT.splitlines()[0], earlier)
    yield CONCLUSIONS.rstrip()


def _gain_cells(
    outcomes: Outcomes, earlier: str | None, trace: str, load: float, fifo: Alike
) -> list[str]:
    cells = [f"{mean(_jct_h(fifo)):,.1f}"]
    for policy in ("sjf", "packing"):
        best = _jct_h(_outcomes(outcomes, trace, load, policy, "oracle", 0.1))
        for forecast in ("shipped", "retrained"):
            try:
                got = _jct_h(_outcomes(outcomes, trace, load, policy, forecast, 0.1))
                cells.append(_gain(_jct_h(fifo), got, best))
            except MissingOutcomesError:
                if earlier is None:
                    raise
                row = kept_row(earlier, IN_SHORT.splitlines()[0], [trace, f"{load:g}"])
                cells.append(row[2 + len(cells)].removesuffix(KEPT) + KEPT)
        cells.append(f"{mean(best):,.1f}")
    return cells


def _gain(fifo: Sequence[float], got: Sequence[float], best: Sequence[float]) -> str:
    """Return the mean JCT and which share of the oracle's gain over fifo it is, per seed."""
    way = [(f - g) / (f - b) for f, g, b in zip(fifo, got, best, strict=True)]
    part, half = mean_with_margin(way)
    return f"{mean(got):,.1f} ({100 * part:.0f} ± {100 * half:.0f} %)"


def _risks(outcomes: Outcomes, earlier: str | None) -> Iterator[str]:
    yield RISKS
    yield "| trace | forecasts | accepted risk | memory exceeded | out of memory | failed | JCT h |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for trace in TRACES:
        for policy, forecast, risk in RUNS:
            if policy != FOUR:
                continue
            key = [trace, forecast, "0" if forecast == "oracle" else f"{risk:.0%}"]
            alike = partial(_outcomes, outcomes, trace, LOADS[-1], FOUR, forecast, risk)
            cells = partial(_risk_cells, len(traced(trace)[0].jobs))
            yield _row(key, cells, alike, RISKS.splitlines()[1], earlier)


def _risk_cells(jobs: int, alike: Alike) -> list[str]:
    return [
        f"{_mean(alike, 'memory_exceeded_rate', 0.01, 1)} %",
        f"{_mean(alike, 'overflows', jobs / 100, 2)} % of jobs",
        _mean(alike, "failed", 1, 1),
        _mean(alike, "average_jct_s", 3600, 1),
    ]


def _noises(outcomes: Outcomes, earlier: str | None) -> Iterator[str]:
    trace, load = NOISY
    yield NOISE.format(trace=trace, load=load)
    yield "| median | spread | sjf | packing | memory exceeded | out of memory |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for noise, bias in NOISES:
        sjf, packing = (
            partial(_outcomes, outcomes, trace, load, policy, "oracle", 0.1, noise, bias)
            for policy in ("sjf", "packing")
        )
        key = [f"{bias:g}", f"{noise:g}"]
        yield _row(key, partial(_noise_cells, sjf), packing, NOISE.splitlines()[1], earlier)


def _noise_cells(sjf: Callable[[], Alike], packing: Alike) -> list[str]:
    return [
        *(_mean(alike, "average_jct_s", 3600, 1, margin=True) for alike in (sjf(), packing)),
        f"{_mean(packing, 'memory_exceeded_rate', 0.01, 0)} %",
        _mean(packing, "overflows", 1, 1),
    ]


def _outcomes(
    outcomes: Outcomes, trace: str, load: float, policy: str, forecast: str, risk: float,
    noise: float = 0.0, bias: float = 1.0,
) -> list[Mapping[str, Any]]:  # fmt: skip
    runs = [Run(trace, load, policy, forecast, risk, seed, noise, bias) for seed in SEEDS]
    if missing := [run for run in runs if run not in outcomes]:
        raise MissingOutcomesError(f"no outcomes of {missing[0]}")
    return [outcomes[run] for run in runs]


def _jct_h(alike: Alike) -> list[float]:
    return [one["average_jct_s"] / 3600 for one in alike]


def _mean(alike: Alike, key: str, unit: float, digits: int, *, margin: bool = False) -> str:
    known = [one[key] / unit for one in alike if one[key] is not None]
    if not known:
        return "-"
    of_all, half = mean_with_margin(known)
    return f"{of_all:,.{digits}f}" + (f" ± {half:,.{digits}f}" if margin and half > 0 else "")


def _policy_name(policy: str) -> str:
    return {TWICE: "packing, twice over", FOUR: "the same, 4 on a device"}.get(policy, policy)


def _label(forecast: str, risk: float) -> str:
    return forecast if risk == 0.1 else f"{forecast}, risk {risk:g}"
