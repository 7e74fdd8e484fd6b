"""Picture of the page: processor time and peak memory of the stages by number of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks.retraining_growth.stages import Cost


def draw(costs: Mapping[int, Sequence[Cost]], path: Path) -> None:
    """Draw a line for each stage that was measured at two sizes or more."""
    figure = Figure(figsize=(11, 4), dpi=120, layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    stages = dict.fromkeys(cost.stage for of_size in costs.values() for cost in of_size)
    for axes in (seconds, memory):  # more stages than the default cycle has colours
        axes.set_prop_cycle(color=[colormaps["tab20"](i) for i in range(20)])
    for stage in stages:
        points = [(n, c) for n, of_size in costs.items() for c in of_size if c.stage == stage]
        sizes = [size for size, _ in points]
        seconds.plot(sizes, [cost.cpu_s for _, cost in points], marker="o", label=stage)
        memory.plot(sizes, [c.peak_bytes / 2**30 for _, c in points], marker="o", label=stage)
    seconds.set(xscale="log", yscale="log", xlabel="outcomes", ylabel="processor time (s)")
    memory.set(xscale="log", yscale="log", xlabel="outcomes", ylabel="peak memory (GiB)")
    memory.axhline(8, color="grey", linewidth=0.8)
    figure.legend(*seconds.get_legend_handles_labels(), fontsize=7, loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
