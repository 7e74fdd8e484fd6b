"""Page with the results of the replays: python -m benchmarks.slurm.page RESULTS.jsonl."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.slurm.questions import SAMPLES, PredictedStart
from benchmarks.slurm.replay import GPUS, LIMITS, NODES, SHORT_FIRST
from benchmarks.slurm.simulated import simulated_waits_s
from benchmarks.slurm.workload import ERROR, USERS, make_jobs

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "slurm.md"
_BEGIN = """# Waiting times in Slurm by time limits

Jobs of 1, 2, 4 or 8 GPUs run in a real Slurm 22.05 of {nodes} nodes with {gpus} GPUs each, as
processes on one machine whose clock runs {speed:g} times faster. Run times are lognormal around ten
minutes. Users request 24 hours (default), the next usual time above 1.5 times the true one
(rounded), or four times the true one. `job_submit.lua`, the bridge's answers and the watcher are
those of [the guide](../schedulers/slurm.md); the predicted limit is a calibrated 90 % quantile
whose error has a standard deviation of {error:g} in the logarithm. The limit "true" is the run
time, rounded up, and a minute; it does not depend on users. "Short first" adds a nice value to
predicted limits: twice the predicted run time weighs as an hour of waiting, by
`priority/multifactor`.

Waits relative to those by the limits that users request: of the sums over seeds, and the range of
single seeds. The targets for predicted limits are -30 % of the mean for users of the default, at
most +5 % for those of four times the true time, and at most +20 % of the 99th percentile.

| users | seeds | wait | predicted | predicted, short first | true |
|---|---:|---|---:|---:|---:|
{summary}
The mean wait in the simulator with `backfill:reserve=all`, relative to that in Slurm, is
{simulated}
(target: within 10 %).
{repeated}

Jobs that need all GPUs of a node wait longest, in Slurm and in the simulator. Mean waits in
minutes, of the jobs of all users and seeds:
{by_gpus}
Mean and 99th percentile of the wait in minutes, for each replay, and the mean of the same jobs in
the simulator:

| users | seed | limits | jobs | mean wait | 99th percentile | simulated mean wait |
|---|---:|---|---:|---:|---:|---:|
"""
_ENOUGH_SEEDS = 5
_HELD_S = (0.0, 20.0, 60.0)  # for which devices are not free after a simulated job
_FEW = """
These are first results, on a machine that was busy with other work. So few replays say in which
direction limits work, and not how much. Starts were predicted before a correction: running jobs
were then planned by the time that they had left, and not by their limits.
"""
_STARTS = """
## Predicted starts

Every hour of the replays' clock, the start of each waiting job is predicted: by
[`presage slurm when`](../schedulers/slurm.md#when-will-a-job-start) with {samples} futures, from
the state and the forecasts of that time, and by `squeue --start`. Neither knows of later
submissions. "Contained" is the part of the true starts within the 80 % interval, widened by a
minute on both sides. Errors are median absolute differences of predicted and true starts in
minutes: of the jobs of which `squeue --start` names a start, and of the others.

| users | limits | questions | contained % | error | error of squeue | none by squeue % | error |
|---|---|---:|---:|---:|---:|---:|---:|
"""
_END = """
[Another page](slurm_bridge.md) has the response times of the bridge, and memory that exceeds its
requests. Written by `python -m benchmarks.slurm` and `python -m benchmarks.slurm.page`.
"""


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of results."""
    ordered = sorted(
        (row for row in rows if row["backfill"]),
        key=lambda row: (list(USERS).index(row["users"]), row["seed"], LIMITS.index(row["limits"])),
    )
    # Of earlier replays only the figures of this page were kept.
    known = [row for row in ordered if "ran_s" in row]
    text = _BEGIN.format(
        nodes=NODES, gpus=GPUS, speed=rows[0]["speed"], error=ERROR,
        summary="".join(_summary(ordered)), simulated=_simulated(ordered),
        repeated=_repeated(ordered), by_gpus="".join(_by_gpus(known)),
    )  # fmt: skip
    for row in ordered:
        text += (
            f"| {row['users']} | {row['seed']} | {row['limits']} | {row['jobs']} "
            f"| {row['mean_min']:.1f} | {row['p99_min']:.1f} | {_simulated_min(row)} |\n"
        )
    if len({row["seed"] for row in rows}) < _ENOUGH_SEEDS:
        text += _FEW
    text += _STARTS.format(samples=SAMPLES)
    groups: dict[tuple[str, str], list[PredictedStart]] = {}
    for row in known:
        found = [PredictedStart(*one) for one in row.get("starts", ())]
        groups.setdefault((row["users"], row["limits"]), []).extend(found)
    for (users, limits), starts in groups.items():
        if starts:
            text += f"| {users} | {limits} | {' | '.join(_starts_cells(starts))} |\n"
    return text + _END


def _summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield two lines for each kind of users."""
    repeats: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        repeats.setdefault((row["users"], row["limits"], row["seed"]), []).append(row)
    found = {key: _mean(group) for key, group in repeats.items()}
    found |= {
        (users, "true", seed): row
        for (_, limits, seed), row in found.items()
        if limits == "true"
        for users in USERS
    }
    for users in USERS:
        seeds = sorted(
            seed
            for of_users, limits, seed in found
            if of_users == users
            and limits == "predicted"
            and (users, "as requested", seed) in found
        )
        if not seeds:
            continue
        base = [found[users, "as requested", seed] for seed in seeds]
        for name, figure in (("mean", "mean_min"), ("99th percentile", "p99_min")):
            changes = [
                _change([found.get((users, limits, seed)) for seed in seeds], base, figure)
                for limits in LIMITS[1:]
            ]
            yield f"| {users} | {len(seeds)} | {name} | {' | '.join(changes)} |\n"


def _mean(repeats: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean figures of replays of the same jobs."""
    figures = ("mean_min", "p99_min")
    return {name: float(np.mean([row[name] for row in repeats])) for name in figures}


def _change(
    rows: Sequence[dict[str, float] | None], base: Sequence[dict[str, float]], figure: str
) -> str:
    """Return the change of the sum over seeds, and the range of the seeds' own changes."""
    pairs = [(row[figure], of[figure]) for row, of in zip(rows, base, strict=True) if row]
    if not pairs:
        return "-"
    total = sum(new for new, _ in pairs) / sum(old for _, old in pairs) - 1
    each = [new / old - 1 for new, old in pairs if old]
    return f"{total:+.0%} ({min(each):+.0%} to {max(each):+.0%})"


def _simulated(rows: Sequence[dict[str, Any]]) -> str:
    rows = [row for row in rows if "simulated_mean_min" in row]
    ratios = [row["simulated_mean_min"] / row["mean_min"] for row in rows if row["mean_min"] > 1]
    total = sum(row["simulated_mean_min"] for row in rows) / sum(row["mean_min"] for row in rows)
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    return (
        f"{total:.2f} over all replays, and for one replay {middle:.2f} in the median and "
        f"{low:.2f} to {high:.2f} in the inner 80 %"
    )


def _repeated(rows: Sequence[dict[str, Any]]) -> str:
    """Return how much the mean wait differs between two replays of the same jobs."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        groups.setdefault((row["users"], row["seed"], row["limits"]), []).append(row["mean_min"])
    repeats = [group for group in groups.values() if len(group) > 1]
    if not repeats:
        return ""
    ratios = [max(group) / min(group) for group in repeats]
    return (
        f"Slurm does not repeat itself exactly: of {len(repeats)} replays that ran more than once, "
        "the longest mean\n"
        f"wait was {np.median(ratios):.2f} times the shortest in the median, and "
        f"{max(ratios):.2f} times at most. Changes of\n"
        "single seeds say little, and so do small changes of the sums.\n"
        f"{sum('ran_s' not in row for row in rows)} of the {len(rows)} replays are earlier ones. "
        "Only their figures in the last table of waits were kept, so\n"
        "they are not in the tables by "
        "GPUs and of predicted starts."
    )


def _by_gpus(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table for limits as requested and one for predicted ones, and a sentence."""
    waits = [(row["limits"], *one) for row in rows for one in _waits_by_job(row)]
    for limits in LIMITS[:2]:
        yield f"\n| GPUs | {limits}: Slurm | simulator | devices free 20 s later | 60 s later |\n"
        yield "|---:|---:|---:|---:|---:|\n"
        for gpus in sorted({gpus for _, gpus, _ in waits}):
            found = [waits_s for of, size, waits_s in waits if (of, size) == (limits, gpus)]
            means = " | ".join(f"{one / 60:.1f}" for one in np.mean(found, axis=0))
            yield f"| {gpus} | {means} |\n"
    slurm, *simulated = np.mean([waits_s for *_, waits_s in waits], axis=0)
    at_once, later, latest = (f"{one / slurm:.2f}" for one in simulated)
    yield (
        "\nIn the last two columns a simulated job holds its devices for some seconds more, as in "
        "Slurm's\nstate COMPLETING until the epilog has run: half a second is 20 s on a clock that "
        "is 40 times faster.\nOver these replays and those with true limits, the simulated mean "
        f"wait\nis {at_once}, {later} and {latest} times Slurm's.\n"
    )


def _waits_by_job(row: Mapping[str, Any]) -> Iterator[tuple[int, list[float]]]:
    """Yield the GPUs of each job, and its waits: in Slurm, and simulated with ``_HELD_S``."""
    if row["limits"] == SHORT_FIRST:
        return  # Slurm's priorities are not simulated
    jobs = make_jobs(row["seed"], row["jobs"], devices=NODES * GPUS, load=row["load"])
    simulated_s = [
        simulated_waits_s(jobs, row["users"], row["limits"], [s + held_s for s in row["ran_s"]])
        for held_s in _HELD_S
    ]
    for job, *waits_s in zip(jobs, row["waits_s"], *simulated_s, strict=True):
        yield job.gpus, waits_s


def _simulated_min(row: Mapping[str, Any]) -> str:
    return f"{row['simulated_mean_min']:.1f}" if "simulated_mean_min" in row else "-"


def _starts_cells(starts: Sequence[PredictedStart]) -> list[str]:
    """Return the cells of a row about predicted starts."""
    known = [one for one in starts if one.median_s is not None]
    inside = [
        (one.low_s or 0.0) - 60
        <= one.true_s
        <= (math.inf if one.high_s is None else one.high_s) + 60
        for one in known
    ]
    by_both = [one for one in known if one.squeue_s is not None]
    by_one = [one for one in known if one.squeue_s is None]
    return [
        f"{len(starts):,}",
        f"{100 * np.mean(inside):.0f}" if known else "-",
        _median_minutes([(one.median_s or 0.0) - one.true_s for one in by_both]),
        _median_minutes([(one.squeue_s or 0.0) - one.true_s for one in by_both]),
        f"{100 * len(by_one) / len(known):.0f}" if known else "-",
        _median_minutes([(one.median_s or 0.0) - one.true_s for one in by_one]),
    ]


def _median_minutes(errors_s: Sequence[float]) -> str:
    return f"{np.median(np.abs(errors_s)) / 60:.1f}" if errors_s else "-"


def main() -> None:
    """Write the page of the results that the command line names."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
