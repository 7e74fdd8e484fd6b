"""The page of benchmarks/elastic_sharing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from benchmarks.elastic_sharing.runs import (
    FORECASTS,
    JOBS_PER_DEVICE,
    SHORT_S,
    USED,
    Outcome,
    Run,
)
from benchmarks.elastic_simulation.runs import DEVICES_OF_A_NODE, LOADS, RESTART_S, SEEDS

Outcomes = Mapping[Run, Outcome]
WORSE_PERCENT = 1.0

INTRODUCTION = """# Elastic jobs that share devices

This benchmark compares the policy `elastic` with two jobs on a device
(`elastic:jobs_per_device=2`) and with one (`elastic`), on two traces at two loads, with {seeds}
seeds each. Written by `python -m benchmarks.elastic_sharing`.

- **Ground truth**: Lucid's measurements of 44 training jobs on RTX 3090s, solo and in pairs
  ([importing](../pipeline/importing.md#lucid)): slowdowns and memory. A job is as many times
  faster as it has more devices, because Lucid measured one device only. Nodes have {per_node}
  devices.
- **Forecasts**: `oracle` knows run times, slowdowns and memory. `shipped` is the release that ships
  with Presage, whose training data contain nothing of Lucid.
- **Jobs**: each trains a model that is drawn for each seed, from a drawn time of the trace on, on a
  quarter to twice the requested devices. A resize costs 0.06 s, a new share nothing, and a restart
  after a preemption {restart:.0f} s.
- Nothing was tuned: `most_slowdown` is 1.5, as in `packing`.

*Slowdown* is the time from the submission of a job to its end, over its run time as requested.
Jobs shorter than {short:.0f} minutes count as {short:.0f} minutes.
"""

LIMITS = """## What does sharing cost?

- The gain is waiting time. The median completion time changes little or rises, because jobs that
  share are slowed down.
- Most rows have more preemptions and all have more resizes, most of all under high load with exact
  forecasts: a job that shares loses its place to a job with less work left.
- The slowdown of a single job is not bounded: the worst one is lower in most rows, and higher in
  others.
- A decision takes longer, see CPU s.

## Limits

- Two traces of [elastic_simulation](elastic_simulation.md); the third, ITP 2, takes too long.
- Memory and slowdowns of a job are those of one device, also for a job on several. The slowest
  worker slows the whole job down.
- In the ground truth the memory of a worker does not depend on the number of workers. The policy
  counts on more memory for each worker of a job that has fewer than it requests.
- In the ground truth a share of compute does not limit a job (`--shares none`).
"""


def page(outcomes: Outcomes) -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION.format(
        seeds=len(SEEDS), per_node=DEVICES_OF_A_NODE, restart=RESTART_S, short=SHORT_S / 60
    )
    yield from _results(outcomes)
    for trace in USED:
        for load in LOADS:
            yield from _table(outcomes, trace, load)
    yield LIMITS.rstrip()


def _results(outcomes: Outcomes) -> Iterator[str]:
    yield "## Does sharing help?\n"
    yield (
        "| trace | load | forecasts | one job, JCT h | two jobs, JCT h | difference | each seed "
        "| worst slowdown, one job | two jobs |"
    )
    yield "|---|---:|---|---:|---:|---:|---|---:|---:|"
    every = []
    for trace in USED:
        for load in LOADS:
            for forecast in FORECASTS:
                one, two = (_of(outcomes, trace, load, forecast, n) for n in JOBS_PER_DEVICE)
                seeds = [
                    (b["average_jct_s"] / a["average_jct_s"] - 1) * 100
                    for a, b in zip(one, two, strict=True)
                ]
                every += seeds
                before, after = _hours(one, "average_jct_s"), _hours(two, "average_jct_s")
                yield (
                    f"| {trace} | {load} | {forecast} | {before:.1f} | {after:.1f} "
                    f"| {(after / before - 1) * 100:+.0f} % "
                    f"| {', '.join(f'{seed:+.0f} %' for seed in seeds)} "
                    f"| {_worst(one):.1f} | {_worst(two):.1f} |"
                )
    yield ""
    yield (
        f"Mean completion times are lower in {sum(one < 0 for one in every)} of {len(every)} runs, "
        f"and higher by more than 1 % in {sum(one > WORSE_PERCENT for one in every)}.\n"
    )


def _table(outcomes: Outcomes, trace: str, load: float) -> Iterator[str]:
    yield f"### {trace}, load {load}\n"
    yield (
        "| jobs on a device | forecasts | JCT h | median | waiting h | median slowdown "
        "| 99 % | preemptions | resizes | out of memory | above their bound | CPU s |"
    )
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for forecast in FORECASTS:
        for number in JOBS_PER_DEVICE:
            of = _of(outcomes, trace, load, forecast, number)
            median, p99 = (mean(one["slowdowns"][name] for one in of) for name in ("median", "p99"))
            exceeded = [one["memory_exceeded_rate"] or 0.0 for one in of]
            above = f"{mean(exceeded) * 100:.1f} %" if number > 1 else "-"
            yield (
                f"| {number} | {forecast} | {_hours(of, 'average_jct_s'):.1f} "
                f"| {_hours(of, 'median_jct_s'):.1f} | {_hours(of, 'average_queue_s'):.1f} "
                f"| {median:.2f} | {p99:.1f} | {_mean(of, 'preemptions'):,.0f} "
                f"| {_mean(of, 'resizes'):,.0f} | {_mean(of, 'overflows'):,.1f} | {above} "
                f"| {_mean(of, 'cpu_s'):.0f} |"
            )
    yield ""


def _of(
    outcomes: Outcomes, trace: str, load: float, forecast: str, number: int
) -> Sequence[Outcome]:
    return [outcomes[Run(trace, load, forecast, number, seed)] for seed in SEEDS]


def _worst(of: Sequence[Outcome]) -> float:
    return max(one["slowdowns"]["worst"] for one in of)


def _mean(of: Sequence[Outcome], name: str) -> float:
    return mean(one[name] for one in of)


def _hours(of: Sequence[Outcome], name: str) -> float:
    return _mean(of, name) / 3600
