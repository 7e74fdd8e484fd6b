"""The page that benchmarks/ray_trials writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.ray_trials.device_release import BUDGET_S
from benchmarks.ray_trials.tuning import MEMORY_BYTES, NODES, RISK
from benchmarks.ray_trials.workload import BUSY_KINDS, LENGTH_S, REPEATS, WAITS

TARGET = 1.4
_MIB, _GIB = 2**20, 2**30

Row = Mapping[str, Any]


def page(
    kinds: Sequence[Row], runs: Sequence[Row], release: str, campaign: Mapping[str, int], note: str
) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield "# Trials of Ray Tune on shared devices"
    yield ""
    yield (
        f"{len(kinds) * REPEATS} trials of Ray Tune on {NODES} nodes of Ray, on whole devices and "
        "with the resources of [`presage.ray.resources`](../schedulers/ray.md), in turn. Written "
        "by `python -m benchmarks.ray_trials`."
    )
    yield ""
    yield (
        "The machine has no GPU. A device is one core of it with "
        f"{MEMORY_BYTES / _GIB:g} GiB of memory for trials. A trial is a real training of a model "
        f"of the profiler's job zoo for about {LENGTH_S:g} s, in a worker of Ray that imports "
        f"torch first. {len(kinds) - BUSY_KINDS} of the {len(kinds)} kinds of trials wait for "
        f"their samples in each step, as from a remote store, for {WAITS[0]:.0%} to "
        f"{WAITS[1]:.0%} of the predicted step; the wait is a sleep. The other {BUSY_KINDS} "
        f"compute all the time. Each kind has {REPEATS} trials. Kinds were drawn by a seed."
    )
    yield ""
    yield (
        f"Forecasts are those of release `{release}`, trained on the committed campaigns and on a "
        f"campaign of {BUDGET_S / 60:g} minutes on one core: {campaign['solo']} jobs and "
        f"{campaign['colocated']} co-locations. No trial's model was measured in them at its batch "
        f"size. The time of the wait was given as `loading`. Risk: {RISK:g}."
    )
    yield ""
    yield "A process that watches the trials of a node kills the newest if they exceed its memory."
    if note:
        yield ""
        yield note
    yield ""
    yield from _runs(runs)
    yield ""
    yield from _kinds(kinds, runs)
    yield ""
    yield from _conclusion(kinds, runs)


def _runs(runs: Sequence[Row]) -> Iterator[str]:
    rows = [
        (
            "by forecasts" if run["mode"] == "shared" else "whole devices",
            f"{run['elapsed_s']:.0f} s", f"{len(run['finished'])} of {run['trials']}",
            f"{_rate([run]):.0f}", f"{run['oom_kills']}",
            ", ".join(f"{peak / _GIB:.2f}" for peak in run["peak_bytes"]),
        )
        for run in runs
    ]  # fmt: skip
    heads = ("run", "time", "finished", "trials per hour", "out of memory", "peak of nodes, GiB")
    yield from _table(heads, rows)


def _kinds(kinds: Sequence[Row], runs: Sequence[Row]) -> Iterator[str]:
    rows = []
    for number, kind in enumerate(kinds):
        whole, shared = (_of_kind(runs, mode, number) for mode in ("whole", "shared"))
        peak = max(row["peak_bytes"] for row in (*whole, *shared))
        rows.append(
            (
                kind["job"], f"{1e3 * kind['wait_s']:.0f} ms",
                f"{1e3 * mean(row['step_s'] for row in whole):.0f} ms", str(kind["trials"]),
                f"{kind['slowdown']:.2f}", f"{_slowdown(runs, number):.2f}",
                f"{kind['memory_bytes'] / _MIB:.0f} MiB", f"{peak / _MIB:.0f} MiB",
            )
        )  # fmt: skip
    heads = (
        "trial", "wait", "step on a whole device", "trials per device", "slowdown predicted",
        "measured", "memory bound", "peak",
    )  # fmt: skip
    yield from _table(heads, rows)
    yield ""
    yield (
        "The predicted slowdown is that of equal trials, of which the part that computes is slowed "
        "down as if it computed all the time. The measured one is of steps among whichever trials "
        "were on the device. Memory contains what a worker of Ray takes."
    )


def _conclusion(kinds: Sequence[Row], runs: Sequence[Row]) -> Iterator[str]:
    whole = [run for run in runs if run["mode"] == "whole"]
    shared = [run for run in runs if run["mode"] == "shared"]
    ratio = _rate(shared) / _rate(whole)
    started = sum(run["trials"] for run in shared)
    killed = sum(run["oom_kills"] for run in shared)
    rows = [row for run in shared for row in run["finished"]]
    larger = [row for row in rows if row["peak_bytes"] > kinds[row["kind"]]["memory_bytes"]]
    above, of_kinds = len(larger), len({row["kind"] for row in larger})
    verdict = "is met" if ratio >= TARGET and killed / started <= RISK else "is missed"
    yield (
        f"*Conclusion.* By forecasts {ratio:.2f} times as many trials finish per hour as on whole "
        f"devices. {killed} of {started} trials ran out of memory ({killed / started:.0%}, the "
        f"risk is {RISK:.0%}); {above} of {len(rows)} exceeded their own bound "
        f"({above / len(rows):.0%}), all of {of_kinds} of the {len(kinds)} kinds. The target of "
        f"{TARGET:g} times the trials, with no more out of memory than the risk, {verdict}."
    )
    yield ""
    yield _losses(kinds, runs)
    yield ""
    yield (
        "What it does not show: GPUs, contention in their memory and caches, and trials that "
        "compute all the time, which do not gain on a core."
    )


def _losses(kinds: Sequence[Row], runs: Sequence[Row]) -> str:
    """Return what the gain of the steps is, and why that of the trials is smaller."""
    gains = [
        kind["trials"] / _slowdown(runs, number)
        for number, kind in enumerate(kinds)
        if kind["trials"] > 1
    ]
    whole, shared = (
        mean(row["setup_s"] for run in runs if run["mode"] == mode for row in run["finished"])
        for mode in ("whole", "shared")
    )
    return (
        f"The steps of trials that share a device gain {mean(gains):.2f} times in the mean. That "
        f"of whole trials is smaller, because {BUSY_KINDS} of {len(kinds)} kinds have whole "
        "devices, and because a trial begins with imports and its first step, which compute: "
        f"{whole:.1f} s on whole devices and {shared:.1f} s by forecasts, in the mean. The longer "
        "trials are, the more sharing gains."
    )


def _slowdown(runs: Sequence[Row], kind: int) -> float:
    """Return the measured steps of a kind by forecasts over those on whole devices."""
    whole, shared = (_of_kind(runs, mode, kind) for mode in ("whole", "shared"))
    return mean(row["step_s"] for row in shared) / mean(row["step_s"] for row in whole)


def _of_kind(runs: Sequence[Row], mode: str, kind: int) -> list[Row]:
    finished = [row for run in runs if run["mode"] == mode for row in run["finished"]]
    return [row for row in finished if row["kind"] == kind]


def _rate(runs: Sequence[Row]) -> float:
    """Return the finished trials per hour."""
    finished = sum(len(run["finished"]) for run in runs)
    return float(3600 * finished / sum(run["elapsed_s"] for run in runs))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
