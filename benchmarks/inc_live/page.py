"""The page docs/benchmarks/inc_live.md."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from benchmarks.inc_live.cases import JOB_SETS, MBIT_PER_S, MIB, RULES, WARM_UP_S

_WORST, _SIMULATED, _RETURN_S = 0.99, 0.05, 2.0

INTRODUCTION = """# Training jobs that share a switch, live

Real DistributedDataParallel jobs on the backend `presage_inc`, whose AllReduces contend for one
slot of the [software switch](../jobs/inc_switch.md). Written by `python -m benchmarks.inc_live` on
{cores} CPU cores. Every rank is a process in a network namespace with a link of {rate:g} Mbit/s in
each direction; switch and arbiter run at the hub. Computation is a pause, as if a GPU did it;
gradients, buckets and AllReduces are those of DDP.

- **ring**: no job uses the switch.
- **first-for-life**: the first job has the switch for itself, the others run by ring.
- **time-saved**: the arbiter decides each AllReduce.

All jobs train for {warm_up_s:g} s before they are measured, in which the arbiter learns their
rhythms. Throughput is the time of an iteration by ring over that under the rule, of medians of the
rounds.
"""


def page(
    sets: Sequence[tuple[dict[str, Any], dict[str, Any]]], killed: dict[str, Any]
) -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION.format(cores=os.cpu_count(), rate=MBIT_PER_S, warm_up_s=WARM_UP_S)
    yield "| target | measured | |"
    yield "|---|---|---|"
    for found, simulated in sets:
        yield from _bars(found, simulated)
    yield from _killed_bars(killed)
    for found, simulated in sets:
        yield from _table(found, simulated)
    yield from _killed(killed)
    loads = [load for found, _ in sets for one in found["rounds"] for load in one["load"]]
    yield ""
    yield (
        f"Load average, processes of the jobs included: {min(loads):.1f} to {max(loads):.1f} on "
        f"{os.cpu_count()} cores.\nThe parameters of the ranks of a job were bitwise equal at the "
        f"end of {_equal_runs(sets)} runs."
    )


def medians(found: dict[str, Any], rule: str) -> dict[str, float]:
    """Return the median time of an iteration of each job under a rule, over the rounds."""
    rounds = [one["jobs"] for one in found["rounds"] if one["rule"] == rule]
    return {
        rows[0]["job"]: median(row["iteration_s"] for row in rows)
        for rows in zip(*rounds, strict=True)
    }


def throughputs(found: dict[str, Any], rule: str) -> dict[str, float]:
    """Return the throughput of each job under a rule, over that by ring."""
    ring = medians(found, "ring")
    return {job: ring[job] / own_s for job, own_s in medians(found, rule).items()}


def _bars(found: dict[str, Any], simulated: dict[str, Any]) -> Iterator[str]:
    name = found["set"]
    shared = throughputs(found, "time-saved").values()
    first = throughputs(found, "first-for-life").values()
    yield _bar(
        f"{name}: mean throughput at least that of first-for-life",
        f"{fmean(shared):.3f}, first-for-life {fmean(first):.3f}", fmean(shared) >= fmean(first),
    )  # fmt: skip
    yield _bar(
        f"{name}: the slowest job at least {_WORST} of ring",
        f"{min(shared):.3f}", min(shared) >= _WORST,
    )  # fmt: skip
    errors = [
        simulated[rule][job] / live_s - 1
        for rule in RULES
        for job, live_s in medians(found, rule).items()
    ]
    worst = max(errors, key=abs)
    yield _bar(
        f"{name}: iteration times within {_SIMULATED:.0%} of the phase simulator",
        f"largest difference {worst:+.1%}", abs(worst) <= _SIMULATED,
    )  # fmt: skip


def _killed_bars(killed: dict[str, Any]) -> Iterator[str]:
    waits = returns(killed)
    yield _bar(
        f"arbiter killed {len(killed['returns_s'])} times: the switch is used again within 2 s",
        f"longest {max(waits):.1f} s" if waits else "not measured",
        bool(waits) and max(waits) <= _RETURN_S,
    )


def returns(killed: dict[str, Any]) -> list[float]:
    """Return the time from each return of the arbiter to the next iteration on the switch."""
    ends_s = sorted(
        end for row in killed["jobs"] for _, end, on_switch in row["iterations"] if on_switch
    )
    found = []
    for at_s in killed["returns_s"]:
        later = [end for end in ends_s if end >= at_s]
        if later:
            found.append(later[0] - at_s)
    return found


def _bar(name: str, value: str, is_met: bool) -> str:
    return f"| {name} | {value} | {'met' if is_met else 'missed'} |"


def _table(found: dict[str, Any], simulated: dict[str, Any]) -> Iterator[str]:
    name = found["set"]
    yield ""
    yield f"## {name.capitalize()}"
    yield ""
    for job in JOB_SETS[name]:
        yield (
            f"- **{job.name}**: {job.ranks} ranks, gradients of {job.gradient_bytes / MIB:g} MiB, "
            f"{job.compute_s:g} s of computation"
        )
    yield ""
    yield "| rule | job | iteration ms | simulated | difference | throughput | on the switch |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for rule in RULES:
        rounds = [one["jobs"] for one in found["rounds"] if one["rule"] == rule]
        relative = throughputs(found, rule)
        for rows in zip(*rounds, strict=True):
            job, times = rows[0]["job"], [1000 * row["iteration_s"] for row in rows]
            expected_s = simulated[rule][job]
            share = fmean(row["share"] for row in rows)
            yield (
                f"| {rule} | {job} | {median(times):.0f} ({min(times):.0f} to {max(times):.0f}) "
                f"| {1000 * expected_s:.0f} | {1000 * expected_s / median(times) - 1:+.1%} "
                f"| {relative[job]:.3f} | {share:.0%} |"
            )
    means = {
        rule: fmean(simulated["ring"][job] / s for job, s in simulated[rule].items())
        for rule in ("first-for-life", "first-come", "time-saved")
    }
    texts = [f"{mean:.3f} by {rule}" for rule, mean in means.items()]
    yield ""
    yield (
        f"Mean throughput in the phase simulator: {texts[0]}, {texts[1]} (a job takes the switch\n"
        f"whenever it is free, which no agreed decision can do), {texts[2]}."
    )


def _killed(killed: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## An arbiter that is killed"
    yield ""
    yield (
        "The two jobs of the first set, while the arbiter is killed (SIGKILL) every 6 s and "
        "started again after 1 s.\nIt needs a few seconds until it responds; jobs continue by the "
        "decisions that they have, and then by ring."
    )
    yield ""
    yield "| job | iteration ms, by ring | with the killed arbiter | longest | on the switch |"
    yield "|---|---:|---:|---:|---:|"
    for ring, row in zip(killed["ring"], killed["jobs"], strict=True):
        ends = [end for _, end, _ in row["iterations"]]
        longest = max(b - a for a, b in pairwise(ends))
        yield (
            f"| {row['job']} | {1000 * ring['iteration_s']:.0f} | {1000 * row['iteration_s']:.0f} "
            f"| {1000 * longest:.0f} | {row['share']:.0%} |"
        )


def _equal_runs(sets: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    rows = [row for found, _ in sets for one in found["rounds"] for row in one["jobs"]]
    return f"{sum(row['is_equal'] for row in rows)} of {len(rows)}"
