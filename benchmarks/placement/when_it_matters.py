"""From which failure rate and cluster size on placement matters, as a table and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.placement.comparisons import WORLDS, reported
from benchmarks.placement.report import Ratio, Store, interval_of, shown, table
from presage.placement.core.batches import BatchSettings
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import RULES, run_rule

GPUS = (8, 16, 64, 128, 512)
NODE_MTBF_H, GPUS_PER_NODE = 234.3 * 24, 8  # InfiniteHBD's trace: docs/schedulers/faults.md
TRACED_H = round(NODE_MTBF_H * GPUS_PER_NODE)  # of a GPU, if its node's failures are those of 8
MTBF_H = (100, 300, 1_000, 3_000, 10_000, TRACED_H, 100_000)
SEEDS = range(6)
MOST_BATCHES, GPU_BATCHES = 500, 4_000  # of a seed; the product of GPUs and batches
LEAST_GAIN = 0.01
PICTURE = Path("docs/pictures/placement_matters.png")

Gains = dict[str, dict[tuple[int, int], Ratio]]  # by world, number of GPUs and MTBF


def section(store: Store) -> Iterator[str]:
    """Yield the section, and draw the picture."""
    found = {
        name: {(gpus, mtbf_h): _stored(store, name, gpus, mtbf_h)
               for gpus in GPUS for mtbf_h in MTBF_H}
        for name in WORLDS
    }  # fmt: skip
    draw(found, PICTURE)
    yield "## When does placement matter?\n"
    yield (
        f"`least-failing` over `first-fit` by cluster size and mean time between failures of a "
        f"GPU, over {len(SEEDS)} seeds of {batches_of(GPUS[-1])} ({GPUS[-1]} GPUs) to "
        f"{batches_of(GPUS[0])} batches, with 1.5 jobs for each GPU:\n"
    )
    yield f"![Makespan of least-failing over first-fit](../pictures/{PICTURE.name})\n"
    yield conclusion(found) + "\n"
    rows = (
        [f"{gpus}", f"{mtbf_h:,}", *(shown(found[name][gpus, mtbf_h], 4) for name in WORLDS)]
        for gpus in GPUS
        for mtbf_h in MTBF_H
    )
    yield from table(["GPUs", "MTBF (h)", *WORLDS], rows)
    yield (
        f"A node of eight GPUs in InfiniteHBD's trace fails every {NODE_MTBF_H / 24:.0f} days, "
        f"which is {TRACED_H:,} h for a GPU if the failures of the node are shared among its GPUs, "
        f"and {NODE_MTBF_H:,.0f} h if each of them counts for each GPU. Repairs take 2 h here, and "
        "5.6 days in the trace.\n"
    )


def batches_of(gpus: int) -> int:
    """Return the number of batches of a seed."""
    return min(MOST_BATCHES, GPU_BATCHES // gpus)


def _stored(store: Store, world: str, gpus: int, mtbf_h: int) -> Ratio:
    name = f"mtbf_{world.replace(' ', '_')}_{gpus}_{mtbf_h}"
    changed = replace(WORLDS[world], gpus=gpus, jobs=gpus * 3 // 2, mtbf_h=float(mtbf_h))
    return interval_of(store.value(name, lambda: ratios(changed)))


def ratios(world: BatchSettings) -> list[float]:
    """Return the mean makespan of least-failing over that of first-fit, for each seed."""
    found = []
    for seed in SEEDS:
        drawn = reported(world, 500 + seed, batches_of(world.gpus))
        first_s, least_s = (
            makespans_s(run_rule(drawn, RULES[name])).mean()
            for name in ("first-fit", "least-failing")
        )
        found.append(float(least_s / first_s))
    return found


def conclusion(found: Gains) -> str:
    """Return from which rate and size on the makespan falls by more than 1 %."""
    parts = []
    for world, gains in found.items():
        limits = {gpus: rarest(gains, gpus) for gpus in GPUS}
        named = [
            f"{mtbf_h:,} h on {_listed([gpus for gpus in GPUS if limits[gpus] == mtbf_h])} GPUs"
            for mtbf_h in sorted({one for one in limits.values() if one})
        ]
        never = [gpus for gpus, limit in limits.items() if not limit]
        text = f"{world}: at a mean of up to {'; '.join(named)}" if named else f"{world}: nowhere"
        if named and never:
            text += f"; not on {_listed(never)} GPUs"
        parts.append(text)
    traced = max(rarest(gains, gpus) for gains in found.values() for gpus in GPUS) >= TRACED_H
    return (
        "Placement by failure rates lowers the makespan by more than 1 %, with the whole interval, "
        f"{', and '.join(parts)}. At the traced {TRACED_H:,} h it "
        f"{'matters on some of them' if traced else 'does not matter on any of them'}."
    )


def rarest(gains: dict[tuple[int, int], Ratio], gpus: int) -> int:
    """Return the largest MTBF with a sure gain of more than 1 % there and below; 0 for none."""
    limit = 0
    for mtbf_h in MTBF_H:
        one = gains[gpus, mtbf_h]
        if one.mean + one.margin >= 1 - LEAST_GAIN:
            break
        limit = mtbf_h
    return limit


def _listed(sizes: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, sizes[:-1])), str(sizes[-1])]))


def draw(found: Gains, path: Path) -> None:
    """Draw the ratios over the MTBF, with a panel for each world."""
    figure = Figure(figsize=(10, 4.4), dpi=110, layout="constrained")
    for panel, (name, gains) in zip(
        figure.subplots(1, len(found), sharex=True), found.items(), strict=True
    ):
        for i, gpus in enumerate(GPUS):
            shifted = [mtbf_h * 1.03 ** (i - 2) for mtbf_h in MTBF_H]  # so that bars do not overlap
            values = [gains[gpus, mtbf_h] for mtbf_h in MTBF_H]
            panel.errorbar(
                shifted, [one.mean for one in values], [one.margin for one in values],
                marker="o", markersize=3, linewidth=1.2, capsize=2, label=f"{gpus} GPUs",
            )  # fmt: skip
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.axvline(TRACED_H, color="black", linestyle="--", linewidth=1)
        panel.annotate(
            f"InfiniteHBD: {NODE_MTBF_H / 24:.0f} days\na node of 8 GPUs", (TRACED_H, 0.04),
            xycoords=("data", "axes fraction"), textcoords="offset points", xytext=(-5, 0),
            fontsize=8, horizontalalignment="right",
        )  # fmt: skip
        panel.set(
            xscale="log", title=name, xlabel="mean time between failures of a GPU (h)",
            ylabel="makespan of least-failing over first-fit",
        )  # fmt: skip
        if name == "no checkpoints":
            panel.legend(fontsize=8, loc="center right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
