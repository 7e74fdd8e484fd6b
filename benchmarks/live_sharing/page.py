"""The page that benchmarks/live_sharing writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any


def page(
    solo: Mapping[str, Mapping[str, float]],
    together: Sequence[tuple[Sequence[str], Sequence[float]]],
    urgent: tuple[float, float],
    jobs: Sequence[Any],
    live: Mapping[str, Mapping[str, Mapping[str, Any]]],
    simulated: Mapping[str, Mapping[str, Any]],
    divided: Mapping[str, Mapping[str, Any]],
    held: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield "# Sharing on a live cluster of two cores"
    yield ""
    yield (
        "This benchmark runs the same jobs under several policies on a live cluster, and compares "
        "the results with the simulator's. Written by `python -m benchmarks.live_sharing`: a "
        f"controller and two agents, each with one core of this machine ({os.cpu_count()} in all), "
        f"and {len(jobs)} real training jobs, {sum(one.urgent for one in jobs)} of them "
        f"latency-sensitive, submitted over {jobs[-1].after_s:.0f} s. Forecasts are measurements "
        "of each kind of job and of each pair of kinds on one core of this cluster; they are also "
        "the simulator's ground truth."
    )
    yield ""
    yield from _table(
        ("job", "step", "setup and end", "from submission to start", "busy", "memory"),
        [
            (
                kind, f"{1e3 * of['step_s']:.0f} ms", f"{of['setup_s']:.1f} s",
                f"{of['start_s']:.1f} s", f"{of['busy']:.0%}",
                f"{of['memory_bytes'] / 2**20:.0f} MiB",
            )
            for kind, of in solo.items()
        ],
    )  # fmt: skip
    yield ""
    slower = [
        step_s / solo[kind]["step_s"]
        for kinds, steps_s in together
        for kind, step_s in zip(kinds, steps_s, strict=True)
    ]
    tenfold, equal = urgent
    yield (
        f"Two jobs with equal shares of one core are {min(slower):.2f} to {max(slower):.2f} times "
        f"as slow as solo, {mean(slower):.2f} times in the mean. In the pairs that `sharing` "
        f"co-locates, a job is {equal:.1%} slower at equal shares. A latency-sensitive job, with "
        f"tenfold weight, is {tenfold:.1%} slower with a best-effort one."
    )
    yield ""
    yield from _table(
        ("policy", "machine slower", "JCT mean", "simulated", "error", "error with ideal weights",
         "wait mean", "SLO violated", "simulated", "run time / SLO", "simulated", "restarts",
         "simulated", "finished"),
        [_row(name, live[name], simulated[name], divided[name]) for name in live],
    )  # fmt: skip
    yield ""
    yield from _words(live, simulated)
    yield ""
    yield (
        "With `--hard-shares`, quotas limit a job to its share. They slow down jobs that use "
        "compute in bursts, so the SLO checks have more to correct. The simulator does not model "
        "bursts."
    )
    yield ""
    yield from _table(
        ("policy, with quotas", "JCT mean", "wait mean", "SLO violated", "run time / SLO",
         "restarts", "finished"),
        [_held_row(name, of) for name, of in held.items()],
    )  # fmt: skip
    yield ""
    yield (
        "*Conclusion.* Exclusive devices are by far the slowest. If users request what their jobs "
        "need, as here, `bin-packing` needs no forecast, and no SLO is violated. `sharing` is for "
        "clusters where requests are unknown and SLOs matter. Its SLO checks evict and restart "
        "best-effort jobs. That is expensive for jobs of one to three minutes with a long setup, "
        "and cheap [for jobs of hours](sharing.md), where without checks a quarter of the SLOs "
        "that can be met are violated."
    )


def _held_row(name: str, live: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    urgent = [one for one in live.values() if one["urgent"]]
    return (
        name,
        f"{_jct_s(live):.1f} s",
        f"{mean(one['waited_s'] for one in live.values()):.1f} s",
        f"{sum(one['late'] for one in urgent)} of {len(urgent)}",
        f"{mean(one['of_promised'] for one in urgent):.2f}",
        str(sum(one["attempts"] - 1 for one in live.values())),
        str(sum(one["phase"] == "FINISHED" for one in live.values())),
    )


def _row(
    name: str,
    live: Mapping[str, Mapping[str, Any]],
    simulated: Mapping[str, Any],
    divided: Mapping[str, Any],
) -> tuple[str, ...]:
    jct_s, simulated_s = _jct_s(live), mean(simulated["jct_s"].values())
    urgent = {job: one for job, one in live.items() if one["urgent"]}
    late = simulated["slo_violation_rate"]
    return (
        name,
        f"{simulated['slower'] - 1:+.1%}",
        f"{jct_s:.1f} s",
        f"{simulated_s:.1f} s",
        f"{simulated_s / jct_s - 1:+.1%}",
        f"{mean(divided['jct_s'].values()) / jct_s - 1:+.1%}",
        f"{mean(one['waited_s'] for one in live.values()):.1f} s",
        f"{sum(one['late'] for one in urgent.values())} of {len(urgent)}",
        "-" if late is None else f"{late * len(urgent):.0f}",
        f"{mean(one['of_promised'] for one in urgent.values()):.2f}",
        f"{mean(simulated['of_promised'][job] for job in urgent):.2f}",
        str(sum(one["attempts"] - 1 for one in live.values())),
        str(simulated["preemptions"]),
        str(sum(one["phase"] == "FINISHED" for one in live.values())),
    )


def _jct_s(live: Mapping[str, Mapping[str, Any]]) -> float:
    return mean(one["jct_s"] for one in live.values())


def _words(
    live: Mapping[str, Mapping[str, Mapping[str, Any]]], simulated: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    off = [
        abs(mean(simulated[name]["jct_s"].values()) / _jct_s(of) - 1) for name, of in live.items()
    ]
    yield (
        "*machine slower*: increase of solo step times, right before and after the run, over those "
        "of the forecasts; the simulator's jobs are slowed by the same factor. JCT is from "
        f"submission to end. The simulator's error is {min(off):.1%} to {max(off):.1%}. *error "
        "with ideal weights*: the error if a weight of ten to one left 18 % of the slowdown, as "
        "intended ([decision 37]"
        "(../decisions/0037-measure-the-slowdown-that-weights-do-not-remove.md) has the attempts, "
        "the rest and a second run of `sharing`). *SLO violated*: latency-sensitive jobs that ran "
        "longer than their SLO. The SLO is the setup time plus the iterations at the 90th "
        "percentile of the solo step time over intervals of three seconds, in the slowest of four "
        "measurements."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
