"""Page of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.retraining_growth.stages import Cost, commands

MOST_S, MOST_BYTES = 3600.0, 8 * 2**30
_TABLES = Path("data/outcomes/tables")


def page(costs: Mapping[int, Sequence[Cost]], folders: Mapping[int, Path]) -> Iterator[str]:
    """Yield the lines of the page, from the costs and the folder of each size."""
    yield from (
        "# Growth of retraining", "",
        "This benchmark measures each stage of `dvc repro` from outcome logs to the gate, for up "
        "to a million reported outcomes. Written by `python -m benchmarks.retraining_growth`.", "",
        "The site is generated: 10,000 kinds of jobs are drawn, which are measured jobs with other "
        "batch sizes (some draws coincide), on 50 kinds of devices of the catalogue. The "
        "popularity of jobs and of devices falls with their rank, in proportion to its inverse. A "
        "tenth of the jobs is co-located with another one. Two servers log the outcomes; 0.5 % are "
        "reported to both. The targets for a million outcomes are an hour on two cores, and "
        "8 GiB.", "",
        "![Processor time and memory by number of outcomes](../pictures/retraining_growth.png)", "",
        "## Rows", "",
    )  # fmt: skip
    yield from _rows_table(folders)
    yield from ("", "## Processor time", "")
    yield (
        "Seconds of a processor. The stages run one after another, each on one thread. *Load* is "
        "the mean load average of the machine, which has two cores; wall time is not shown, "
        "because other processes ran."
    )
    yield ""
    yield from _cost_table(costs, lambda cost: f"{cost.cpu_s:,.1f}")
    loads = [sum(c.load for c in of_size) / len(of_size) for of_size in costs.values()]
    yield f"| load | {' | '.join(f'{load:.0f}' for load in loads)} |"
    yield from ("", "## Peak memory", "", "MiB of the process of a stage.", "")
    yield from _cost_table(costs, lambda cost: f"{cost.peak_bytes / 2**20:,.0f}")
    yield from ("", *_verdict(costs))


def _rows_table(folders: Mapping[int, Path]) -> Iterator[str]:
    names = ("outcomes", "jobs", "executions", "colocations", "op_stats")
    yield f"| reported | {' | '.join(f'`{name}`' for name in names)} |"
    yield f"|---:|{'---:|' * len(names)}"
    for size, folder in folders.items():
        counts = [pq.read_metadata(folder / _TABLES / f"{name}.parquet").num_rows for name in names]
        yield f"| {size:,} | {' | '.join(f'{count:,}' for count in counts)} |"


def _cost_table(costs: Mapping[int, Sequence[Cost]], show: Callable[[Cost], str]) -> Iterator[str]:
    yield f"| stage | {' | '.join(f'{size:,}' for size in costs)} |"
    yield f"|---|{'---:|' * len(costs)}"
    for stage, _ in commands():
        by_size = [
            next((c for c in of_size if c.stage == stage), None) for of_size in costs.values()
        ]
        shown = ["not measured" if cost is None else show(cost) for cost in by_size]
        yield f"| {stage} | {' | '.join(shown)} |"


def _verdict(costs: Mapping[int, Sequence[Cost]]) -> Iterator[str]:
    """Yield what the largest size shows of the targets."""
    yield from ("## Targets", "")
    size = max(costs)
    found, missing = costs[size], {stage for stage, _ in commands()}
    missing -= {cost.stage for cost in found}
    seconds, peak = sum(c.cpu_s for c in found), max(c.peak_bytes for c in found)
    yield (
        f"With {size:,} outcomes the measured stages take {seconds:,.0f} s of a processor "
        f"({seconds / MOST_S:.0%} of an hour of one core) and at most {peak / 2**30:.1f} GiB "
        f"({peak / MOST_BYTES:.0%} of 8 GiB)."
    )
    if missing:
        names = ", ".join(f"`{stage}`" for stage, _ in commands() if stage in missing)
        yield f"Not measured at this size: {names}. So whether the hour holds is not known."
    else:
        holds = seconds <= MOST_S and peak <= MOST_BYTES
        yield "Both targets are met." if holds else "The targets are missed."
