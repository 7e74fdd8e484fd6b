"""Work of a live controller and of the simulator by number of nodes, for docs/benchmarks/scale.md.

Run ``python -m benchmarks.scale LUCID``. LUCID is the folder that ``presage import lucid`` wrote;
the trace is Philly's, of PRESAGE_DATASETS (``../shared/datasets``). Outcomes are stored in
``--output`` and not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import write_page
from benchmarks.scale.day import ERROR, PARTS, simulate_day
from benchmarks.scale.heartbeats import measure_heartbeats
from benchmarks.scale.nodes import measure_nodes
from benchmarks.sharing.runs import DAY_S

HOUR_S = 3600.0
PAGE = Path("docs/benchmarks/scale.md")
NODES = (100, 1_000, 10_000)
DAYS = (10_000,)
EVENTS = {
    "idle": "pass without a change",
    "join": "a new node joins, with the pass after it",
    "drain": "drain with eviction",
    "jobs": "placement of the jobs of a drained node",
    "silence": "pass in which a node becomes silent",
    "loss": "loss of a node, with placement of its jobs",
}

INTRODUCTION = """\
# Large clusters

This benchmark measures the work of a live controller and of the simulator that grows with the
number of nodes. Written by `python -m benchmarks.scale LUCID`. Nodes have 10 devices; the policy is
`sharing`. Times are processor times, so they count no waiting for other processes. *Load* is the
load average of the machine, which has two cores.

## Arrival, drain and loss of a node

The controller's core with its journal in SQLite, and a running job on each device; a fifth as many
nodes again are empty. Each value is the median of up to 20 events, and the slowest one. The target
for the arrival, drain or loss of one of 10,000 nodes is 50 ms.
"""

STREAMS_TEXT = """\
## Heartbeats

A controller process with a connection and a stream to each simulated agent, over gRPC on one
machine; all agents are in another process. *Heartbeats* repeat the last report; whole reports have
10 tasks. Both include the controller's answers. *Core at this pace* is computed from the columns
before it, for agents with running tasks that report at the pace that the controller requests for so
many nodes: heartbeats and whole reports, and what the controller does by itself. The target is half
of a core at 10,000 nodes. The next columns are measured with heartbeats and whole reports together,
at the pace that the controller requests; the target is compared with *core* of these.
"""

DAY_TEXT = f"""\
## A day in the simulator

The jobs, ground truth and load are those of [sharing](sharing.md): a day of Philly's jobs, repeated
as often as the cluster needs, which request as many device-seconds as it has. Predicted run times
are {ERROR:.0%} too long or too short, by kind of job. The policy decides once a second
(`--pass-interval-s`), as a controller of so many nodes does. Jobs arrive, end and slow each other
down at their exact times. The simulation is one process, so it uses one core. The target is an hour
of two cores.
"""


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("lucid", type=Path)
    parser.add_argument("--output", type=Path, default=Path(".cache/scale"))
    parser.add_argument("--nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--streams", type=int, nargs="*", default=NODES)
    parser.add_argument("--days", type=int, nargs="*", default=DAYS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    nodes = [_stored("nodes", one, measure_nodes, args.output) for one in args.nodes]
    streams = [_stored("streams", one, measure_heartbeats, args.output) for one in args.streams]
    days = [
        _stored("day", one, lambda nodes, _: simulate_day(nodes, args.lucid), args.output)
        for one in args.days
    ]
    write_page(PAGE, page(nodes, streams, days))


def _stored(
    name: str, nodes: int, measure: Callable[[int, Path], Mapping[str, Any]], output: Path
) -> dict[str, Any]:
    path = output / f"{name}_{nodes}.json"
    if not path.is_file():
        found = {**measure(nodes, output / "work"), "load": os.getloadavg()[0]}
        path.write_text(json.dumps(found))
    row: dict[str, Any] = json.loads(path.read_text())
    return row


def page(
    nodes: Sequence[Mapping[str, Any]],
    streams: Sequence[Mapping[str, Any]],
    days: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Return the page as lines of Markdown."""
    yield INTRODUCTION
    yield "| event | " + " | ".join(f"{row['nodes']:,} nodes" for row in nodes) + " |"
    yield "|---" * (len(nodes) + 1) + "|"
    for event, text in EVENTS.items():
        cells = (f"{row[event]['median']:.1f} / {row[event]['slowest']:.1f} ms" for row in nodes)
        yield f"| {text} | " + " | ".join(cells) + " |"
    loads = " | ".join(f"{row['load']:.0f}" for row in nodes)
    yield f"| load | {loads} |"
    yield ""
    yield STREAMS_TEXT
    yield (
        "| nodes | heartbeat | whole report | without reports | heartbeats every | whole reports "
        "every | core at this pace | messages/s | answers/s | core | load |"
    )
    yield "|---" * 11 + "|"
    for row in streams:
        whole_per_s = row["nodes"] / row["report_s"]
        short_per_s = max(0.0, row["nodes"] / row["heartbeat_s"] - whole_per_s)
        core = (
            row["idle"] + short_per_s * row["heartbeat_cpu_s"] + whole_per_s * row["report_cpu_s"]
        )
        yield (
            f"| {row['nodes']:,} | {1e6 * row['heartbeat_cpu_s']:.0f} µs "
            f"| {1e6 * row['report_cpu_s']:.0f} µs | {row['idle']:.1%} "
            f"| {row['heartbeat_s']:.1f} s | {row['report_s']:.0f} s | {core:.0%} "
            f"| {row['messages_per_s']:,.0f} | {row['answers_per_s']:,.0f} | {row['core']:.0%} "
            f"| {row['load']:.0f} |"
        )
    yield ""
    yield DAY_TEXT
    for row in days:
        yield from _day(row)


def _day(row: Mapping[str, Any]) -> Iterator[str]:
    """Return the rows of the first hours, and what they mean for a day."""
    parts, every = row["parts"], PARTS // 24 // 2
    yield f"{row['nodes']:,} nodes, {row['jobs']:,} jobs a day:"
    yield ""
    yield "| simulated | passes | jobs ended | running | pending | evictions | core time |"
    yield "|---" * 7 + "|"
    for part in (*parts[every - 1 :: every], *(parts[-1:] if len(parts) % every else ())):
        yield (
            f"| {part['until_s'] / HOUR_S:.2f} h | {part['passes']:,} | {part['ended']:,} "
            f"| {part['running']:,} | {part['pending']:,} | {part['evictions']:,} "
            f"| {part['spent_s'] / 60:.1f} min |"
        )
    last = parts[-1]
    yield ""
    text = f"{last['spent_s'] / 60:.0f} min of one core for {last['until_s'] / HOUR_S:.1f} hours"
    if last["until_s"] < DAY_S:
        half = parts[len(parts) // 2 - 1]
        per_s = (last["spent_s"] - half["spent_s"]) / (last["until_s"] - half["until_s"])
        day_s = last["spent_s"] + per_s * (DAY_S - last["until_s"])
        text += (
            f"; the rest was not simulated. At the pace of the second half of these hours, a day "
            f"takes {day_s / 60:.0f} min; later hours take longer if more jobs are pending"
        )
    yield f"{text}. It took {row['memory_bytes'] / 2**30:.1f} GiB of memory."


if __name__ == "__main__":
    main()
