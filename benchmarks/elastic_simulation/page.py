"""The page of benchmarks/elastic_simulation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.elastic_simulation.runs import (
    ALL_OTHERS,
    DEVICES_OF_A_NODE,
    LOADS,
    MEASURED_SIZES,
    MOST_GPUS,
    RESTART_S,
    SEEDS,
    TRACES,
    VARIANTS,
    Run,
    ScalingErrors,
)
from benchmarks.elastic_simulation.served_errors import FEW, ServedError, mean_error
from benchmarks.markdown import KEPT, kept_row, table_column

Outcomes = Mapping[Run, Mapping[str, Any]]
BASELINE = ("srtf", "predicted", "elastic")
MAIN = ("elastic", "predicted", "elastic")
ORACLE = ("elastic", "oracle", "elastic")
REQUIRED_PERCENT, WORSE_PERCENT = -5.0, 1.0

INTRODUCTION = """\
# Elastic jobs in the simulator

This benchmark compares the mean job completion time (JCT) under the policy `elastic`, which resizes
jobs, and under `srtf`, which gives each job the requested devices. It uses three traces at two
loads, with {seeds} seeds each. Written by `python -m benchmarks.elastic_simulation`.

- **Ground truth**: Pollux's measured steps of six models on T4s, {per_node} on a node
  ([importing](../pipeline/importing.md#pollux)), as `presage simulate --scaling measured` uses
  them. The traced duration applies to the requested devices on the fewest nodes. The batch of all
  devices together is constant: a device that gets more of it than fits accumulates gradients.
  Sizes that were not measured follow the rules of
  `schedulers/simulator/ground_truth/scaling_curve.py`. Jobs of more than {most} devices are left
  out.
- **Forecasts**: the step on one device is that of the release that ships with Presage. Its
  training data contain the steps of these models on one device, so a cluster with new models is
  off by more. Users know the number of iterations. The speed on several devices is that of the
  scaling law (`features/scaling/scaling_law.py`), fitted **without** the model that it predicts.
  Once a job has run, its measured pace at each size corrects the law.
- **Jobs**: each trains a model that is drawn for each seed, from a drawn time of the trace on.
  Elastic jobs run on a quarter to twice the requested devices. A resize costs 0.06 s, a restart
  after a preemption {restart:g} s. `srtf` runs the same jobs and never resizes them.
- The policy was tuned on ITP 6 and Philly 103959, which are not reported. On ITP 6, hold times of
  0 to 300 s differ by less than 1 %, and 1,800 s costs 1 to 2 %.

Load is the devices that jobs request over the devices of the cluster.
"""

CPU_S, RESULTS = "CPU s", "## Results"

KEPT_ROWS = """\
Rows and figures with † and the column "CPU s" are of an earlier run with an earlier release, the
column because this run shared its processor with other programs.
"""

NOTES = """\
## Where the gain comes from

- **Order and gaps**: `elastic` with jobs of a fixed size orders by remaining device-seconds, and
  smaller jobs use the devices that a blocked gang leaves.
- **Shrinking** gives the most, above all on traces with wide gangs. Links between nodes are slow
  here: bert on two T4s is 1.97 times as fast as on one if they share a node, and 1.01 times if they
  do not. A gang over several nodes wastes most of its devices, and `srtf` grants the request
  nevertheless. On a cluster with fast links the gain is smaller.
- **Growth** beyond the request is limited to devices that no job uses up to its request. In a
  first version a short job grew at the expense of longer ones. On vc_0e4a51 that cost 10 to 18 %
  against jobs that only shrink, and the limit gained 1 to 3 % on ITP 6.
- What a resize costs hardly matters, since jobs last hours. Work that preemptions repeat does.

`pollux` gives every job a share, however long it lasts. Where devices suffice for all it is as good
as `elastic` or better by a few per cent. On vc_0e4a51, where long jobs queue, it is worse than
`srtf`.

## Limits

- Exact forecasts would save at most {oracle} more (`oracle`).
- The pace of a simulated job is known as soon as it has a new size. A real job needs some steps.
- The batch per device is the model's middle measured one. Larger batches scale better.
- The convergence of a job does not depend on its size, because its batch is constant.
- The release that predicts steps on one device was trained on these models' steps on one device.
"""


def page(outcomes: Outcomes, errors: ScalingErrors, earlier: str | None = None) -> Iterator[str]:
    """Yield the lines of the page.

    Parameters
    ----------
    outcomes : mapping of Run to mapping
        Metrics of each simulation.
    errors : ScalingErrors
        Errors of predicted steps.
    earlier : str, optional
        Page of an earlier run, whose CPU times are kept, and rows without outcomes.
    """
    yield INTRODUCTION.format(
        seeds=len(SEEDS), per_node=DEVICES_OF_A_NODE, most=MOST_GPUS, restart=RESTART_S
    )
    if earlier is not None:
        yield KEPT_ROWS
    yield from _bars(outcomes, earlier)
    for trace in TRACES:
        for load in LOADS:
            yield from _table(outcomes, trace, load, earlier)
    yield from error_tables(errors)
    yield NOTES.format(oracle=_oracle_gain(outcomes, earlier))


def _oracle_gain(outcomes: Outcomes, earlier: str | None) -> str:
    """Return what exact forecasts save at most, by the earlier page if outcomes are missing."""
    pairs = [(trace, load) for trace in TRACES for load in LOADS]
    if earlier is not None and not all(
        _is_simulated(outcomes, *pair, variant) for pair in pairs for variant in (ORACLE, MAIN)
    ):
        found = re.search(r"would save at most (\d+ %)", earlier)
        if found is None:
            raise ValueError("the page does not say what exact forecasts save")
        return found[1] + KEPT
    gains = [
        (1 - mean(_each(outcomes, *pair, ORACLE)) / mean(_each(outcomes, *pair, MAIN))) * 100
        for pair in pairs
    ]
    return f"{max(gains):.0f} %"


def _bars(outcomes: Outcomes, earlier: str | None) -> Iterator[str]:
    yield f"{RESULTS}\n"
    yield "| trace | load | srtf, JCT h | elastic, JCT h | difference | each seed |"
    yield "|---|---:|---:|---:|---:|---|"
    met: list[bool] = []
    every: list[float] = []
    for trace in TRACES:
        for load in LOADS:
            if earlier is not None and not all(
                _is_simulated(outcomes, trace, load, one) for one in (BASELINE, MAIN)
            ):
                row = kept_row(earlier, RESULTS, [trace, f"{load}"])
                met.append(_percent(row[4]) <= REQUIRED_PERCENT)
                every += map(_percent, row[5].split(","))
                yield f"| {' | '.join(row)} |"
                continue
            before, after = (_each(outcomes, trace, load, one) for one in (BASELINE, MAIN))
            seeds = [(b / a - 1) * 100 for a, b in zip(before, after, strict=True)]
            change = (mean(after) / mean(before) - 1) * 100
            met.append(change <= REQUIRED_PERCENT)
            every += seeds
            yield (
                f"| {trace} | {load} | {mean(before):.1f} | {mean(after):.1f} | {change:+.0f} % | "
                f"{', '.join(f'{one:+.0f} %' for one in seeds)} |"
            )
    yield ""
    yield (
        f"At least 5 % below `srtf`: {sum(met)} of {len(met)} pairs of trace and load. Worse by "
        f"more than 1 %: {sum(one > WORSE_PERCENT for one in every)} of {len(every)} runs.\n"
    )


def _percent(cell: str) -> float:
    return float(cell.strip().removesuffix("%"))


def _is_simulated(
    outcomes: Outcomes, trace: str, load: float, variant: tuple[str, str, str]
) -> bool:
    return all(_run(trace, load, variant, seed) in outcomes for seed in SEEDS)


def _each(
    outcomes: Outcomes, trace: str, load: float, variant: tuple[str, str, str]
) -> list[float]:
    return [outcomes[_run(trace, load, variant, seed)]["average_jct_s"] / 3600 for seed in SEEDS]


def _run(trace: str, load: float, variant: tuple[str, str, str], seed: int) -> Run:
    policy, forecast, jobs = variant
    return Run(trace, load, policy, forecast, seed, jobs)


_NAMES = {
    "rigid": "fixed size", "shrink": "a quarter to the request",
    "elastic": "a quarter to twice",
}  # fmt: skip


def _table(outcomes: Outcomes, trace: str, load: float, earlier: str | None) -> Iterator[str]:
    heading = f"### {trace}, load {load}"
    times = table_column(earlier, heading, CPU_S) if earlier is not None else None
    yield f"{heading}\n"
    yield (
        "| policy | forecasts | sizes | JCT h | median | 99 % | waiting h | in use % | preemptions "
        f"| resizes | {CPU_S} |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for number, variant in enumerate(VARIANTS):
        policy, forecast, jobs = variant
        sizes = _NAMES[jobs] if policy != "srtf" else "the request"
        if earlier is not None and not _is_simulated(outcomes, trace, load, variant):
            yield f"| {' | '.join(kept_row(earlier, heading, [policy, forecast, sizes]))} |"
            continue
        of = [outcomes[_run(trace, load, variant, seed)] for seed in SEEDS]
        cpu_s = times[number] if times is not None else f"{_mean(of, 'cpu_s'):.0f}"
        yield (
            f"| {policy} | {forecast} | {sizes} | {_hours(of, 'average_jct_s'):.1f} "
            f"| {_hours(of, 'median_jct_s'):.1f} | {_hours(of, 'p99_jct_s'):.0f} "
            f"| {_hours(of, 'average_queue_s'):.1f} "
            f"| {_mean(of, 'device_utilization') * 100:.0f} | {_mean(of, 'preemptions'):,.0f} "
            f"| {_mean(of, 'resizes'):,.0f} | {cpu_s} |"
        )
    yield ""


def _mean(outcomes: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean(one[name] for one in outcomes)


def _hours(outcomes: Sequence[Mapping[str, Any]], name: str) -> float:
    return _mean(outcomes, name) / 3600


def error_tables(errors: ScalingErrors) -> Iterator[str]:
    """Yield the lines of the tables of errors."""
    yield "## Error of predicted steps on several devices\n"
    yield (
        "Mean absolute error of the step time that a server process answers "
        "(`PredictScaling`), with a release\nwhose law was fitted without the model. Means weigh "
        "all models equally.\n"
    )
    yield "### A model at a placement that was not measured\n"
    yield (
        "Each batch size of a model is a job. Its placements are dealt into five folds; those of a "
        "fold are predicted\nfrom measured steps of the others, or of some drawn ones. The goal "
        "is 6 %.\n"
    )
    yield f"| model | all others | within 80 % interval | {FEW} drawn | within 80 % interval |"
    yield "|---|---:|---:|---:|---:|"
    every, few = errors.placements[ALL_OTHERS], errors.placements[FEW]
    for model, found in every.items():
        yield f"| {model} | {_cells(found)} | {_cells(few[model])} |"
    means = (_cells(mean_error(list(found.values()))) for found in (every, few))
    yield f"| mean | {' | '.join(means)} |"
    yield "\n### An unseen model after some sizes\n"
    yield (
        "A job of four devices at the middle batch size, at all other consolidated sizes up to "
        "twice the largest\nmeasured one. The global batch is constant. The goal after two sizes "
        "is 10 %.\n"
    )
    yield "| measured devices | error | within 80 % interval |"
    yield "|---|---:|---:|"
    for number, error in errors.refits.items():
        sizes = ", ".join(str(gpus) for gpus, _ in MEASURED_SIZES[number]) or "none"
        yield f"| {sizes} | {_cells(error)} |"
    yield "\n### The law alone\n"
    yield "From the measured step on one device, over all placements and batch sizes:\n"
    yield "| model | fitted without the model | fitted with it |"
    yield "|---|---:|---:|"
    for model, (without, with_it) in errors.law.items():
        yield f"| {model} | {without:.1f} % | {with_it:.1f} % |"
    yield ""


def _cells(error: ServedError) -> str:
    return f"{error.percent:.1f} % | {error.covered_percent:.0f} %"
