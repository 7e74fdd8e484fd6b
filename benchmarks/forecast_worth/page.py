"""The page of benchmarks/forecast_worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from presage.schedulers.simulator.results.confidence import mean_with_margin

INTRODUCTION = """\
# What forecasts are worth

By `python -m benchmarks.forecast_worth`. Three traces at two loads, each under policies that know
nothing and policies that are told: by the release that ships (`shipped`); by releases that learnt
from other families of jobs on the same card (`retrained`: what one `dvc repro` makes of an
operator's own measurements; no job is foretold by a release that learnt anything of its family);
by a table of measurements (`table`); and by the truth (`oracle`).

The truth of a job's memory, utilization and slowdown beside another is Lucid's measurement of 44
training jobs, alone and in pairs, on an RTX 3090 with 24 GB, which the release that ships never
saw. Three and four jobs on a device slow each other down by the sum of what pairs do. Which model
a job trains is drawn, anew for each of {seeds} seeds; so is the moment of the trace at which it
begins (what was before comes after its end). How long a job runs alone, and how many devices it
needs, is the trace's. To be started again costs {restart_s:g} s. A job takes the memory
that was measured, whatever it was granted: 30 s after its start it runs out of memory if the device
has not so much left, and waits again. Users are taken to know how many iterations their jobs run:
forecasts err in how long a step takes, how busy it keeps a device, and how much memory it needs.

Figures are means over the seeds; average JCT has half of its 95 % confidence interval (Student's t)
beside it. Load is devices asked for over devices there; "unfair" are jobs that took longer than on
their part of the cluster alone (finish-time fairness). "Twice over" grants compute twice over,
and leaves it to the foretold slowdowns who goes beside whom.
"""

IN_SHORT = """\
## In short

Average JCT in hours, and in brackets the part of the way from `fifo` to the policy's oracle that
forecasts bring it, seed by seed:
"""

CONCLUSIONS = """
To know how long jobs run is worth most, by far, and releases tell it well enough: also the one that
ships, to which all of these jobs are foreign. What is told of neighbours is worth less, and sharing
still shortens every one of the six. A part above 100 % says that the oracle is no bound of
`packing`: who believes that jobs need less packs more of them, and two on a device seldom fill its
memory. Bounds of memory are another matter: see below.
"""

RISKS = """
## Promised and observed risk

Up to four jobs on a device and its compute granted twice over, each job granted the upper bound of
its memory at a risk; at the higher load. Of the times that a job was granted a part of a device,
those when it took more memory than that; how often a job ran out of memory, of all jobs; and
jobs that failed, after eight times:
"""

NOISE = """
## How good must they be

The oracle made worse ({trace}, load {load:g}): its answers times log-normal factors, with this
median and this spread of the logarithm (0.25: two in three are within 28 %; 1: within 2.7 times).
A factor that is the same for all jobs changes no order, and `sjf` not at all. Average JCT in hours:
"""

Outcomes = Mapping[Run, Mapping[str, Any]]

_COLUMNS = {
    "JCT h": ("average_jct_s", 3600, 1), "median": ("median_jct_s", 3600, 1),
    "99 %": ("p99_jct_s", 3600, 0), "waiting h": ("average_queue_s", 3600, 1),
    "makespan h": ("makespan_s", 3600, 0), "slowdown": ("average_slowdown", 1, 2),
    "in use %": ("device_utilization", 0.01, 0), "unfair %": ("unfair_fraction", 0.01, 0),
    "99 % unfairness": ("p99_unfairness", 1, 1), "out of memory": ("overflows", 1, 1),
}  # fmt: skip


def page(outcomes: Outcomes) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield INTRODUCTION.format(seeds=len(SEEDS), restart_s=RESTART_S)
    yield "| trace | jobs | devices |"
    yield "|---|---:|---:|"
    for name, (_, _, nodes) in TRACES.items():
        jobs = len(traced(name)[0].jobs)
        yield f"| {name} | {jobs:,} | {nodes * DEVICES_OF_A_NODE} |"
    yield ""
    yield from _gains(outcomes)
    for trace in TRACES:
        for load in LOADS:
            yield from ("", f"## {trace}, {load:g} of the devices asked for", "")
            yield f"| policy | forecasts | {' | '.join(_COLUMNS)} |"
            yield f"|---|---|{'---:|' * len(_COLUMNS)}"
            for policy, forecast, risk in RUNS:
                alike = _outcomes(outcomes, trace, load, policy, forecast, risk)
                cells = [
                    _mean(alike, *column, margin=column[0] == "average_jct_s")
                    for column in _COLUMNS.values()
                ]
                yield f"| {_policy_name(policy)} | {_label(forecast, risk)} | {' | '.join(cells)} |"
    yield from _risks(outcomes)
    yield from _noises(outcomes)


def _gains(outcomes: Outcomes) -> Iterator[str]:
    yield IN_SHORT
    yield (
        "| trace | load | fifo | sjf: shipped | retrained | oracle "
        "| packing: shipped | retrained | oracle |"
    )
    yield f"|---|---:|{'---:|' * 7}"
    for trace in TRACES:
        for load in LOADS:
            fifo = _jct_h(outcomes, trace, load, "fifo", "none")
            cells = []
            for policy in ("sjf", "packing"):
                best = _jct_h(outcomes, trace, load, policy, "oracle")
                for forecast in ("shipped", "retrained"):
                    got = _jct_h(outcomes, trace, load, policy, forecast)
                    way = [(f - g) / (f - b) for f, g, b in zip(fifo, got, best, strict=True)]
                    part, half = mean_with_margin(way)
                    cells.append(f"{mean(got):,.1f} ({100 * part:.0f} ± {100 * half:.0f} %)")
                cells.append(f"{mean(best):,.1f}")
            yield f"| {trace} | {load:g} | {mean(fifo):,.1f} | {' | '.join(cells)} |"
    yield CONCLUSIONS.rstrip()


def _risks(outcomes: Outcomes) -> Iterator[str]:
    yield RISKS
    yield "| trace | forecasts | promised | took more | ran out | failed | JCT h |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for trace in TRACES:
        for policy, forecast, risk in RUNS:
            if policy != FOUR:
                continue
            alike = _outcomes(outcomes, trace, LOADS[-1], policy, forecast, risk)
            promised = "0" if forecast == "oracle" else f"{risk:.0%}"
            took_more = _mean(alike, "memory_exceeded_rate", 0.01, 1)
            ran_out = _mean(alike, "overflows", len(traced(trace)[0].jobs) / 100, 2)
            failed, jct_h = _mean(alike, "failed", 1, 1), _mean(alike, "average_jct_s", 3600, 1)
            yield (
                f"| {trace} | {forecast} | {promised} | {took_more} % | {ran_out} % of jobs "
                f"| {failed} | {jct_h} |"
            )


def _noises(outcomes: Outcomes) -> Iterator[str]:
    trace, load = NOISY
    yield NOISE.format(trace=trace, load=load)
    yield "| median | spread | sjf | packing | took more | out of memory |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for noise, bias in NOISES:
        of = {
            policy: _outcomes(outcomes, trace, load, policy, "oracle", 0.1, noise, bias)
            for policy in ("sjf", "packing")
        }
        jct = [_mean(alike, "average_jct_s", 3600, 1, margin=True) for alike in of.values()]
        exceeded = _mean(of["packing"], "memory_exceeded_rate", 0.01, 0)
        overflows = _mean(of["packing"], "overflows", 1, 1)
        yield f"| {bias:g} | {noise:g} | {' | '.join(jct)} | {exceeded} % | {overflows} |"


def _outcomes(
    outcomes: Outcomes, trace: str, load: float, policy: str, forecast: str, risk: float,
    noise: float = 0.0, bias: float = 1.0,
) -> list[Mapping[str, Any]]:  # fmt: skip
    return [outcomes[Run(trace, load, policy, forecast, risk, seed, noise, bias)] for seed in SEEDS]


def _jct_h(outcomes: Outcomes, trace: str, load: float, policy: str, forecast: str) -> list[float]:
    alike = _outcomes(outcomes, trace, load, policy, forecast, 0.1)
    return [one["average_jct_s"] / 3600 for one in alike]


def _mean(
    alike: Iterable[Mapping[str, Any]], key: str, unit: float, digits: int, *, margin: bool = False
) -> str:
    known = [one[key] / unit for one in alike if one[key] is not None]
    if not known:
        return "-"
    of_all, half = mean_with_margin(known)
    return f"{of_all:,.{digits}f}" + (f" ± {half:,.{digits}f}" if margin and half > 0 else "")


def _policy_name(policy: str) -> str:
    return {TWICE: "packing, twice over", FOUR: "the same, 4 on a device"}.get(policy, policy)


def _label(forecast: str, risk: float) -> str:
    return forecast if risk == 0.1 else f"{forecast}, risk {risk:g}"
