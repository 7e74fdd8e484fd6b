"""Speed of the simulator, written to docs/benchmarks/simulator.md.

Run ``python -m benchmarks.simulator DATASETS [--rounds 3] [--measured FOLDER] [--jobs-at-most
N]``: DATASETS has the traces (docs/pipeline/importing.md), FOLDER tables of another kind of
device whose jobs are packed as well. Twenty minutes on one core; less with fewer jobs. Each
measurement has a process of its own; of several rounds the fastest counts. Exits with 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks.markdown import write_page
from benchmarks.simulator.runs import (
    ENDED_BETWEEN,
    ONE_VC,
    PHILLY,
    Run,
    bare,
    decisions_ms,
    grown,
    isolated,
    profiled_sharing,
    profiled_whole,
    sharing,
    simulated,
)
from presage.schedulers.policies.policy_registry import POLICIES

PAGE = Path("docs/benchmarks/simulator.md")
PICTURES = Path("docs/pictures")
ZOO = Path("data/profiles/cpu-2-zoo")
LISTS = ("fifo", "sjf")  # policies that serve a list
PUBLISHED_S = {"vc": (796_881.0, 388_986.4), "philly": (849_784.9, 26_818.4)}  # average JCT
JOBS_PER_S, PHILLY_S, SHARING_PER_S, DECISION_MS = 20_000, 6.0, 3_000, 100.0  # the bars
SHARED_JOBS, SHARED_NODES = 20_000, (96, 64)
PENDING, OWN_PENDING, WIDE_NODES = 10_000, (100, 1_000, 10_000), 1_024
DECISIONS = 40
GROWN = (1_000, 10_000, 100_000, 1_000_000)
GROWN_POLICIES = ("fifo", "sjf", "backfill", "las", "packing")
GROWN_LOAD = 0.8  # of Philly's: the queue is short, and does not grow with the trace
SHARING = (("sjf", "oracle"), ("packing", "oracle"), ("packing", "release"))
SHORT_ROUNDS = 3  # of a trace of a twentieth of a second, in one of all of Philly
FEWEST_SHARED = 0.1
MOST_FILES = 9
INTRODUCTION = """\
This benchmark measures the speed and memory of the simulator, and the time of one decision of each
policy. Written by `python -m benchmarks.simulator DATASETS [--measured FOLDER]`, in one run. Times
are CPU seconds of the simulation only, the fastest of {rounds} rounds (of three times as many for
the first, short trace). The machine has {cores} cores, shared with other programs (load average
{load:.1f} at the beginning). Compare ratios to the floor, which is measured in the same run: a bare
event loop of 40 lines (`bare_loop` in `benchmarks/simulator/runs.py`) that makes the same schedule
without ledger, log or checks."""
OTHERS = """\
Figures of the other simulators were published with the trace and are not from this run. Gavel's
simulator decides in rounds of 360 s, so its schedule differs.

| simulator | policy | average JCT s | CPU s | jobs per CPU s |
|---|---|---:|---:|---:|
| Lucid, steps of 1 s | FIFO | 796,881.0 | 119.5 | 8.2 |
| Lucid, steps of 1 s | SJF | 388,986.4 | - | about 7 |
| Gavel, rounds of 360 s | FIFO | 731,501.8 | 57 | 17 |
| Gavel, rounds of 360 s | LAS | 496,855.6 | 59 | 17 |"""


class Bar(NamedTuple):
    """Target of a figure, and whether it is met."""

    what: str
    target: str
    found: str
    met: bool


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulator",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--jobs-at-most", type=int, default=GROWN[-1])
    args = parser.parse_args()
    bars: list[Bar] = []
    tables = [ZOO] if args.measured is None else [ZOO, args.measured]
    philly = args.datasets / PHILLY
    introduction = INTRODUCTION.format(
        rounds=args.rounds, cores=os.cpu_count(), load=os.getloadavg()[0]
    )
    sections = [
        *exclusive_devices(args.datasets, args.rounds, bars),
        *shared(philly, tables, args.rounds, bars),
        *decisions(philly, tables[-1], bars),
        *growth(philly, args.jobs_at_most),
        *where_time_goes(philly, tables[-1]),
    ]
    lines = ["# Speed of the simulator", "", introduction, "", *barred(bars), *sections]
    write_page(PAGE, lines)
    missed = [bar.what for bar in bars if not bar.met]
    if missed:
        sys.exit(f"targets missed: {'; '.join(missed)}")


_MET = {True: "met", False: "**missed**"}


def quickest(runs: Sequence[Run]) -> Run:
    """Return the fastest of several rounds."""
    return min(runs, key=lambda run: run.cpu_s)


def barred(bars: Sequence[Bar]) -> list[str]:
    """Return the table of targets."""
    return [
        "| figure | target | measured | |",
        "|---|---:|---:|---|",
        *(f"| {what} | {target} | {found} | {_MET[met]} |" for what, target, found, met in bars),
        "",
    ]


def exclusive_devices(datasets: Path, rounds: int, bars: list[Bar]) -> Iterator[str]:
    """Yield results of two traces on exclusive devices, with the floor and published figures."""
    for title, key, path, nodes in (
        ("One virtual cluster of Philly: 984 jobs, 8 x 8 GPUs", "vc", ONE_VC, 8),
        ("All of Philly: 82,240 jobs, 64 x 8 GPUs", "philly", PHILLY, 64),
    ):
        yield from (f"## {title}", "")
        if key == "philly":
            yield from ("Without its seven jobs of 12 GPUs.", "")
        yield (
            "| policy | average JCT s | published s | CPU s | jobs per CPU s | floor, CPU s "
            "| times the floor | peak MiB |"
        )
        yield "|---|---:|---:|---:|---:|---:|---:|---:|"
        for policy, published_s in zip(LISTS, PUBLISHED_S[key], strict=True):
            pairs = [
                [isolated(how, datasets / path, nodes, policy) for how in (simulated, bare)]
                for _ in range(rounds if key == "philly" else SHORT_ROUNDS * rounds)
            ]
            run, floor = (quickest(runs) for runs in zip(*pairs, strict=True))
            yield (
                f"| {policy} | {run.average_jct_s:,.1f} | {published_s:,.1f} | {run.cpu_s:.3f} "
                f"| {run.jobs_per_s:,.0f} | {floor.cpu_s:.4f} | {run.cpu_s / floor.cpu_s:.1f} "
                f"| {run.peak_mib:,.0f} |"
            )
            exact = round(run.average_jct_s, 1) == round(floor.average_jct_s, 1) == published_s
            found_s = f"{run.average_jct_s:,.1f}"
            bars.append(
                Bar(f"{key}, {policy}: average JCT s", f"{published_s:,.1f}", found_s, exact)
            )
            if key == "vc":
                bars.append(_at_least(f"vc, {policy}: jobs per CPU s", JOBS_PER_S, run.jobs_per_s))
            else:
                bars.append(_below(f"philly, {policy}: CPU s", PHILLY_S, run.cpu_s))
        yield ""
        if key == "vc":
            yield from (OTHERS, "")


def shared(philly: Path, tables: Sequence[Path], rounds: int, bars: list[Bar]) -> Iterator[str]:
    """Yield results of jobs that share devices by measurements of their models."""
    yield from (
        f"## With sharing and interference: Philly's first {SHARED_JOBS:,} jobs",
        "",
        "Models are drawn at random from measured tables, which have their slowdowns in pairs.",
        "`packing` uses the ground truth (oracle) or forecasts of the pretrained release in the",
        "same process. `sjf`, which does not share devices, is given for comparison.",
        "",
        "| tables | GPUs | policy | forecasts | jobs per CPU s | CPU s | mean queue "
        "| jobs that shared % | average JCT s |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|",
    )  # fmt: skip
    few = []
    for folder in tables:
        most = 0.0
        for nodes in SHARED_NODES:
            for policy, forecast in (
                ("sjf", "oracle"),
                ("packing", "oracle"),
                ("packing", "release"),
            ):
                given = (philly, folder, SHARED_JOBS, nodes, policy, forecast)
                run = quickest([isolated(sharing, *given) for _ in range(rounds)])
                most = max(most, run.shared)
                yield (
                    f"| {folder.name} | {nodes * 8} | {policy} | {forecast} "
                    f"| {run.jobs_per_s:,.0f} | {run.cpu_s:.2f} | {run.mean_pending:,.1f} "
                    f"| {100 * run.shared:.1f} | {run.average_jct_s:,.0f} |"
                )
                if policy == "packing":
                    what = f"{folder.name}, {nodes * 8} GPUs, packing by {forecast}: jobs per CPU s"
                    bars.append(_at_least(what, SHARING_PER_S, run.jobs_per_s))
        if most < FEWEST_SHARED:
            few.append(f"`{folder.name}`")
    yield ""
    if few:
        yield f"Few jobs of {' and '.join(few)} share: they leave little of a device free."
        yield ""


def decisions(philly: Path, tables: Path, bars: list[Bar]) -> Iterator[str]:
    """Yield times of one decision on a wide cluster with many pending jobs."""
    yield from (
        f"## One decision: {PENDING:,} pending jobs, {WIDE_NODES * 8:,} GPUs",
        "",
        f"{DECISIONS} decisions, one a minute, on a full cluster in which {ENDED_BETWEEN} jobs",
        f"ended since the previous decision. Jobs are Philly's, with models of `{tables.name}`;",
        "their forecasts (oracle) are cached before the decision. The target is for the median.",
        "",
        "| policy | median ms | slowest ms |",
        "|---|---:|---:|",
    )
    for policy in POLICIES:
        took = isolated(decisions_ms, philly, tables, policy, PENDING, WIDE_NODES, DECISIONS, False)
        yield f"| {policy} | {median(took):.2f} | {max(took):.1f} |"
        bars.append(_below(f"{policy}: one decision, ms", DECISION_MS, median(took)))
    yield from (
        "",
        "In the worst case every pending and running job has distinct features, so no forecast",
        "applies to two jobs. `packing` then requests the slowdowns of the first 256 pending",
        "jobs with at most 256 running ones. It caches them; if the cache is full, it requests",
        "them again, which causes the slowest decisions.",
        "",
        "| policy | pending jobs | median ms | slowest ms |",
        "|---|---:|---:|---:|",
    )
    for policy in POLICIES:
        for pending in OWN_PENDING if policy == "packing" else (PENDING,):
            took = isolated(
                decisions_ms, philly, tables, policy, pending, WIDE_NODES, DECISIONS, True
            )
            yield f"| {policy} | {pending:,} | {median(took):.2f} | {max(took):.1f} |"
            what = f"{policy}: one decision, {pending:,} pending jobs with distinct features, ms"
            bars.append(_below(what, DECISION_MS, median(took)))
    yield ""


def growth(philly: Path, most: int) -> Iterator[str]:
    """Yield results of ever longer traces."""
    sizes = [jobs for jobs in GROWN if jobs <= most]
    yield from (
        "## Growth with the number of jobs",
        "",
        "Jobs like Philly's (`presage trace generate`) on 512 GPUs, arriving at "
        f"{GROWN_LOAD:g} times",
        "Philly's rate. Memory includes Philly's trace and the generated jobs.",
        "",
        "![CPU seconds and peak memory by jobs](../pictures/simulator_growth.png)",
        "",
        "| policy | jobs | CPU s | jobs per CPU s | mean queue | peak MiB |",
        "|---|---:|---:|---:|---:|---:|",
    )
    found: dict[str, list[Run]] = {}
    for policy in GROWN_POLICIES:
        for jobs in sizes:
            run = isolated(grown, philly, jobs, 64, GROWN_LOAD, policy)
            found.setdefault(policy, []).append(run)
            yield (
                f"| {policy} | {jobs:,} | {run.cpu_s:.2f} | {run.jobs_per_s:,.0f} "
                f"| {run.mean_pending:,.1f} | {run.peak_mib:,.0f} |"
            )
    yield ""
    _draw_growth(found, PICTURES / "simulator_growth.png")


def _draw_growth(found: Mapping[str, Sequence[Run]], target: Path) -> None:
    figure = Figure(figsize=(9, 3.6), dpi=100, layout="constrained")
    speed, memory = figure.subplots(1, 2)
    for policy, runs in found.items():
        jobs = [run.jobs for run in runs]
        speed.plot(jobs, [run.cpu_s for run in runs], marker="o", label=policy)
        memory.plot(jobs, [run.peak_mib for run in runs], marker="o", label=policy)
    speed.set(title="CPU seconds", xlabel="jobs", xscale="log", yscale="log")
    memory.set(title="peak memory, MiB", xlabel="jobs", xscale="log", yscale="log")
    speed.legend()
    figure.savefig(target)


def where_time_goes(philly: Path, tables: Path) -> Iterator[str]:
    """Yield the shares of the simulator's files in the time of two runs."""
    spent = {
        "sjf": isolated(profiled_whole, philly, 64, "sjf"),
        f"packing, {tables.name}": isolated(
            profiled_sharing, philly, tables, SHARED_JOBS, SHARED_NODES[-1], "packing"
        ),
    }
    shares = {
        name: {file: 100 * s / sum(own_s.values()) for file, s in own_s.items()}
        for name, own_s in spent.items()
    }
    files = sorted(
        {file for of in shares.values() for file in of},
        key=lambda file: -sum(of.get(file, 0.0) for of in shares.values()),
    )[:MOST_FILES]
    yield from (
        "## Where time goes",
        "",
        "Own time of each file of `schedulers/` in per cent, for Philly under `sjf` and for",
        "jobs that share devices as above. Measured by cProfile, which exaggerates the cost of",
        "calls. `Python` is the interpreter's own functions and all other files.",
        "",
        "![own time by file](../pictures/simulator_profile.png)",
        "",
        f"| file | {' | '.join(shares)} |",
        f"|---|{'---:|' * len(shares)}",
        *(
            f"| {file} | {' | '.join(f'{of.get(file, 0.0):.1f}' for of in shares.values())} |"
            for file in files
        ),
    )
    figure = Figure(figsize=(8, 4), dpi=100, layout="constrained")
    panel = figure.subplots()
    for place, (name, of) in enumerate(shares.items()):
        at = [i + 0.4 * place for i in range(len(files))]
        panel.barh(at, [of.get(file, 0.0) for file in files], height=0.4, label=name)
    panel.set_yticks([i + 0.2 for i in range(len(files))], files)
    panel.invert_yaxis()
    panel.set(xlabel="% of the time")
    panel.legend()
    figure.savefig(PICTURES / "simulator_profile.png")


def _at_least(what: str, target: float, found: float) -> Bar:
    return Bar(what, f">= {target:,.0f}", f"{found:,.0f}", found >= target)


def _below(what: str, target: float, found: float) -> Bar:
    return Bar(what, f"< {target:g}", f"{found:.2f}", found < target)


if __name__ == "__main__":
    main()
