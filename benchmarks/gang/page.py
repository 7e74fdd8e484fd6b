"""The page and the picture of benchmarks/gang."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.gang.decision import CASES, GANGS, MEMBERS, NODES, WHEN
from benchmarks.gang.plans import LARGE, NODE, SMALL, Large, Small
from benchmarks.gang.runs import (
    ANYWHERE,
    FORECAST_SETTINGS,
    FORECASTS,
    GANG,
    KEEPS_NOTHING,
    ONE,
    OPTIMISERS,
    POLICIES,
    RATIOS,
    SEEDS,
    SETTINGS,
    STREAM_DAYS,
    STREAM_POLICIES,
    Run,
    Stream,
    by_optimiser,
    swept,
)
from benchmarks.gang.words import (
    DECISIONS,
    FORECASTED,
    IN_SIMULATOR,
    INTRODUCTION,
    LARGE_PLANS,
    LAST,
    OPTIMISED,
    SMALL_PLANS,
    STREAMED,
    SWEPT,
    of_setting,
)
from presage.schedulers.simulator.results.confidence import mean_with_margin

PICTURE = Path("docs/pictures/gang_sweep.png")
DEAR = ("rack", "spine", "cluster")  # levels outside of nodes
BAR_MS = 300.0
HOUR_S, PETA, PERCENT = 3600.0, 1e15, 0.01
NAMES = {
    GANG: "gang", f"{GANG}:alpha=0": "gang, topology only (alpha=0)",
    f"{GANG}:beta=0": "gang, interference only (beta=0)",
    f"{GANG}:reduce=max": "gang, worst member (reduce=max)",
    ANYWHERE: "gang, any devices (near=cluster)",
    KEEPS_NOTHING: "gang, no reservations (expiry_s=0)", "packing:overcommit=2": "packing",
}  # fmt: skip
Made = Mapping[Any, Mapping[str, Any]]


def page(made: Made) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield INTRODUCTION.format(
        cores=os.cpu_count(), machine=platform.machine(), python=platform.python_version(),
        numpy=np.__version__, load=os.getloadavg()[0],
    )  # fmt: skip
    yield from _small(made)
    yield from _large(made)
    yield from _decisions(made)
    yield IN_SIMULATOR.format(seeds=len(SEEDS), devices=f"{NODES * NODE:,}")
    for setting in SETTINGS:
        yield from _setting(made, *setting)
    yield from _streams(made)
    yield from _sweep(made)
    yield from _optimised(made)
    yield from _by_forecast(made)
    yield ""
    yield LAST.rstrip()


# Plans --------------------------------------------------------------------------------------------


def _small(made: Made) -> Iterator[str]:
    yield SMALL_PLANS
    yield "| optimiser | " + " | ".join(_of_case(case) for case in SMALL) + " | CPU ms |"
    yield f"|---|{'---:|' * (len(SMALL) + 1)}"
    for name in made[SMALL[0]]:
        cells = []
        for case in SMALL:
            one = made[case].get(name)
            cells.append("-" if one is None else f"{100 * one['above']:.1f} ({one['found']})")
        yield f"| {name} | {' | '.join(cells)} | {made[SMALL[0]][name]['ms']:.1f} |"
    yield ""


def _of_case(case: Small | Large) -> str:
    return f"{'identical' if case.alike else 'different'}, {case.reduce}"


def _large(made: Made) -> Iterator[str]:
    yield LARGE_PLANS
    names = list(made[LARGE[0]])[:-1]
    yield f"| gang | bound | {' | '.join(names)} |"
    yield f"|---|---:|{'---:|' * len(names)}"
    for case in LARGE:
        results = made[case]
        title = f"{case.members} of {case.free:,}, {_of_case(case)}"
        cells = [f"{results[name]['cost']:.4f}" if name in results else "-" for name in names]
        yield f"| {title} | {results['bound']:.4f} | {' | '.join(cells)} |"
    yield from ("", "CPU time in milliseconds:", "")
    yield f"| gang | {' | '.join(names)} |"
    yield f"|---|{'---:|' * len(names)}"
    for case in LARGE:
        results = made[case]
        title = f"{case.members} of {case.free:,}, {_of_case(case)}"
        cells = [f"{results[name]['ms']:,.1f}" if name in results else "-" for name in names]
        yield f"| {title} | {' | '.join(cells)} |"
    yield ""


def _decisions(made: Made) -> Iterator[str]:
    yield DECISIONS.format(members=MEMBERS, devices=f"{NODES * NODE:,}", gangs=GANGS, bar=BAR_MS)
    yield (
        "| forecasts | distinct co-located jobs | gang | ms | CPU ms | service, CPU ms "
        "| slowest ms | |"
    )
    yield "|---|---:|---|---:|---:|---:|---:|---|"
    for case in CASES:
        results = made[case]
        for when in WHEN:
            of = results[when]
            met = "met" if of["wall_ms"] < BAR_MS else "**missed**"
            yield (
                f"| {case.where} | {results['occupancies']:,} | {when} | {of['wall_ms']:.0f} "
                f"| {of['cpu_ms']:.0f} | {of['service_ms']:.0f} | {of['worst_ms']:.0f} | {met} |"
            )
    yield ""


# Simulations --------------------------------------------------------------------------------------


def _setting(made: Made, world: str, trace: str, load: float) -> Iterator[str]:
    title, words = of_setting(world, trace, load)
    yield from (f"### {title}", "")
    base = _alike(made, world, trace, load, "best-fit")
    yield (
        "| policy | JCT h | % of best-fit | median h | 99 % h | gangs >= 8 h | slowdown | 99 % "
        "| in use % | reserved % | rollbacks |"
    )
    yield f"|---|{'---:|' * 10}"
    for policy in POLICIES:
        alike = _alike(made, world, trace, load, policy)
        yield f"| {_policy_name(policy)} | {_jct(alike, base)} |"
    yield ""
    levels = list(base[0]["bytes_by_level"])
    yield (
        f"| policy | {' | '.join(f'{level} PB' for level in levels)} "
        "| longest wait h | mean wait h | overtaken by, mean | maximum | rollbacks, maximum |"
    )
    yield f"|---|{'---:|' * (len(levels) + 5)}"
    for policy in POLICIES:
        alike = _alike(made, world, trace, load, policy)
        sent = [f"{mean(_sent(one, (level,)) for one in alike):.1f}" for level in levels]
        yield f"| {_policy_name(policy)} | {' | '.join(sent)} | {_waits(alike)} |"
    yield from ("", words)


def _jct(alike: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    cells = [_mean(alike, "average_jct_s", HOUR_S, 1, margin=True), _ratio(alike, base)]
    cells += [_mean(alike, *column) for column in (
        ("median_jct_s", HOUR_S, 1), ("p99_jct_s", HOUR_S, 0), ("large_jct_s", HOUR_S, 1),
        ("average_slowdown", 1.0, 2), ("p99_slowdown", 1.0, 2), ("device_utilization", PERCENT, 0),
        ("reserved_share", PERCENT, 1), ("rollbacks", 1.0, 0),
    )]  # fmt: skip
    return " | ".join(cells)


def _waits(alike: Sequence[Mapping[str, Any]]) -> str:
    return " | ".join(_mean(alike, *column) for column in (
        ("largest_wait_s", HOUR_S, 0), ("largest_mean_wait_s", HOUR_S, 0), ("bypasses", 1.0, 0),
        ("most_bypasses", 1.0, 0), ("most_rollbacks", 1.0, 1),
    ))  # fmt: skip


def _streams(made: Made) -> Iterator[str]:
    yield STREAMED
    yield f"| policy | {' | '.join(f'{days} d' for days in STREAM_DAYS)} |"
    yield f"|---|{'---:|' * len(STREAM_DAYS)}"
    for policy in STREAM_POLICIES:
        cells = []
        for days in STREAM_DAYS:
            alike = [made[Stream(policy, days, seed)] for seed in SEEDS]
            passed = mean(one["bypasses"] for one in alike)
            cells.append(f"{_mean(alike, 'wait_s', HOUR_S, 1, margin=True)} ({passed:,.0f})")
        yield f"| {policy} | {' | '.join(cells)} |"
    yield ""


def _sweep(made: Made) -> Iterator[str]:
    yield SWEPT.format(picture=f"../pictures/{PICTURE.name}")
    yield "| near | alpha : beta | JCT h | % of best-fit | slowdown | over racks and higher PB |"
    yield "|---|---:|---:|---:|---:|---:|"
    base = _alike(made, *ONE, "best-fit")
    for near in ("node", "cluster"):
        for alpha, beta in RATIOS:
            alike = _alike(made, *ONE, swept(near, alpha, beta))
            dear = mean(_sent(one, DEAR) for one in alike)
            yield (
                f"| {near} | {alpha} : {beta} "
                f"| {_mean(alike, 'average_jct_s', HOUR_S, 1, margin=True)} "
                f"| {_ratio(alike, base)} | {_mean(alike, 'average_slowdown', 1.0, 2)} "
                f"| {dear:.1f} |"
            )
    yield ""


def _optimised(made: Made) -> Iterator[str]:
    yield OPTIMISED
    yield "| optimiser | JCT h | % of tree | slowdown | over racks and higher PB | CPU s |"
    yield "|---|---:|---:|---:|---:|---:|"
    base = _alike(made, *ONE, by_optimiser("tree"))
    for name in OPTIMISERS:
        alike = _alike(made, *ONE, by_optimiser(name))
        dear = mean(_sent(one, DEAR) for one in alike)
        yield (
            f"| {name} | {_mean(alike, 'average_jct_s', HOUR_S, 1, margin=True)} "
            f"| {_ratio(alike, base)} | {_mean(alike, 'average_slowdown', 1.0, 2)} "
            f"| {dear:.1f} | {_mean(alike, 'cpu_s', 1.0, 1)} |"
        )
    yield ""


def _by_forecast(made: Made) -> Iterator[str]:
    yield FORECASTED
    yield (
        "| jobs of | policy | forecasts | JCT h | % of best-fit | slowdown | 99 % "
        "| out of memory | in use % |"
    )
    yield f"|---|---|---|{'---:|' * 6}"
    for world, trace, load in FORECAST_SETTINGS:
        base = _alike(made, world, trace, load, "best-fit")
        for policy in (GANG, "packing:overcommit=2"):
            for forecast in FORECASTS:
                alike = _alike(made, world, trace, load, policy, forecast)
                yield (
                    f"| {world} | {_policy_name(policy)} | {forecast} "
                    f"| {_mean(alike, 'average_jct_s', HOUR_S, 1, margin=True)} "
                    f"| {_ratio(alike, base)} | {_mean(alike, 'average_slowdown', 1.0, 2)} "
                    f"| {_mean(alike, 'p99_slowdown', 1.0, 2)} "
                    f"| {_mean(alike, 'overflows', 1.0, 1)} "
                    f"| {_mean(alike, 'device_utilization', PERCENT, 0)} |"
                )


def draw(made: Made, path: Path) -> None:
    """Draw JCT against bytes over expensive levels, for a sweep of alpha : beta."""
    figure = Figure(figsize=(8, 4.8), dpi=100, layout="constrained")
    panel = figure.subplots()
    for near, marker in (("node", "o"), ("cluster", "s")):
        points = []
        for alpha, beta in RATIOS:
            alike = _alike(made, *ONE, swept(near, alpha, beta))
            jct_h, half = mean_with_margin([one["average_jct_s"] / HOUR_S for one in alike])
            points.append((mean(_sent(one, DEAR) for one in alike), jct_h, half))
        x, y, _ = zip(*points, strict=True)
        panel.plot(x, y, marker=marker, label=f"gang, near={near}")
        for (alpha, beta), (sent, jct_h, _) in zip(RATIOS, points, strict=True):
            panel.annotate(
                f"{alpha}:{beta}", (sent, jct_h), textcoords="offset points", xytext=(5, 5),
                fontsize=8,
            )  # fmt: skip
    for policy, marker in (("best-fit", "^"), ("bin-packing", "v"), ("packing:overcommit=2", "D")):
        alike = _alike(made, *ONE, policy)
        panel.plot(
            mean(_sent(one, DEAR) for one in alike),
            mean(one["average_jct_s"] / HOUR_S for one in alike),
            marker=marker, linestyle="", label=_policy_name(policy),
        )  # fmt: skip
    panel.set(
        title="alpha : beta swept (Gavel's V100, ITP 2, load 1.1; means over seeds)",
        xlabel="gradients over racks, spines and the cluster, PB", ylabel="average JCT, h",
        xlim=(0, None),
    )  # fmt: skip
    panel.legend()
    figure.savefig(path)


def _alike(
    made: Made, world: str, trace: str, load: float, policy: str, forecast: str = "oracle"
) -> list[Mapping[str, Any]]:
    return [made[Run(world, trace, load, policy, seed, forecast)] for seed in SEEDS]


def _sent(one: Mapping[str, Any], levels: Sequence[str]) -> float:
    sent = one["bytes_by_level"] or {}
    return sum(sent.get(level, 0.0) for level in levels) / PETA


def _ratio(alike: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    """Return the ratio of average JCTs, seed by seed."""
    ratios = [100 * one["average_jct_s"] / of["average_jct_s"]
              for one, of in zip(alike, base, strict=True)]  # fmt: skip
    middle, half = mean_with_margin(ratios)
    return f"{middle:.0f} ± {half:.0f}" if half > 0 else f"{middle:.0f}"


def _mean(
    alike: Sequence[Mapping[str, Any]], key: str, unit: float, digits: int, *, margin: bool = False
) -> str:
    of_all, half = mean_with_margin([one[key] / unit for one in alike])
    return f"{of_all:,.{digits}f}" + (f" ± {half:,.{digits}f}" if margin and half > 0 else "")


def _policy_name(policy: str) -> str:
    return NAMES.get(policy, policy)
