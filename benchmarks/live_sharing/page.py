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
    yield "# Sharing for real, on two cores"
    yield ""
    yield (
        "Written by `python -m benchmarks.live_sharing`: a controller and two agents, each with "
        f"one core of this machine ({os.cpu_count()} in all), and {len(jobs)} real training jobs, "
        f"{sum(one.urgent for one in jobs)} of them latency-sensitive, submitted over "
        f"{jobs[-1].after_s:.0f} s. Forecasts are what was measured of each kind of job alone on a "
        "core, and of every two on one, through the same cluster; the simulator has the same for "
        "its truth."
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
        f"Two on one core with equal shares are {min(slower):.2f} to {max(slower):.2f} times as "
        f"slow as alone, {mean(slower):.2f} times in the mean. Of the pairs that `sharing` puts "
        f"together each is {equal:.1%} slower beside the other at equal shares; latency-sensitive, "
        f"with a weight that counts tenfold, {tenfold:.1%} beside a best-effort one."
    )
    yield ""
    yield from _table(
        ("policy", "machine slower", "JCT mean", "simulated", "off by", "if weights divided all",
         "waited mean", "late",
         "simulated", "time of that promised", "simulated", "ended and run again", "simulated",
         "finished"),
        [_row(name, live[name], simulated[name], divided[name]) for name in live],
    )  # fmt: skip
    yield ""
    yield from _words(live, simulated)
    yield ""
    yield (
        "With `--hard-shares` a job gets its share and no more: by quotas, which slow down jobs "
        "whose use comes in bursts. There the loop has more to mend. (The simulator does not know "
        "of bursts.)"
    )
    yield ""
    yield from _table(
        ("policy, with quotas", "JCT mean", "waited mean", "late", "time of that promised",
         "ended and run again", "finished"),
        [_held_row(name, of) for name, of in held.items()],
    )  # fmt: skip
    yield ""
    yield (
        "*What to take from it.* Whole devices are the slowest by far. Where users request what "
        "their jobs need, as here, `bin-packing` needs no forecast, and nobody is late. `sharing` "
        "is for where nobody knows what to request, and promises count. Its look at them is paid "
        "for by best-effort jobs that are ended and begin again; that weighs on jobs of one to "
        "three minutes, of which the setup is a good part, and little "
        "[on jobs of hours](sharing.md), where without it a quarter of the promises that can be "
        "kept are not."
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
        "*machine slower*: by how much longer the steps of all kinds took alone, right before and "
        "after the run, than when forecasts were made; the simulator's jobs take longer by that. "
        f"JCT is from submission to end. The simulator is off by {min(off):.1%} to {max(off):.1%}. "
        "*If weights divided all*: off by so much, if a weight of ten to one left of what two do "
        "to each other no more than the 18 % that it should ([decision 37]"
        "(../decisions/0037-measure-the-slowdown-that-weights-do-not-remove.md): what was tried, "
        "what is left, and what a second run of `sharing` gave). "
        "*late* are latency-sensitive jobs that ran longer than they were promised when they "
        "started: setup, and iterations at the pace that nine in ten of its stretches of three "
        "seconds were faster than when it ran alone, in the slowest of four times."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
