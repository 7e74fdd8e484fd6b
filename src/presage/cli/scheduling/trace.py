"""``presage trace``: what a trace of jobs is like, parts of it, and more jobs like those of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.errors import ConfigError
from presage.system.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.traces.summary import Summary
    from presage.schedulers.traces.trace import Trace

app = typer.Typer(
    help="Traces of jobs: look into them, cut them, make more like them (docs/traces.md).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_FILE = "csv of ours, Philly, ITP or openb, plain or .gz, or a log of `presage simulate`."
File = Annotated[Path, typer.Argument(metavar="FILE", help=_FILE)]
Output = Annotated[Path, typer.Option(metavar="OUT.csv", help="File to write, in our own format.")]
Load = Annotated[
    float, typer.Option(metavar="FACTOR", help="Times the load: arrival times are divided by it.")
]


@app.command()
def show(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show what a trace is like: load, arrivals, gangs, durations, users, what was left out."""
    from presage.schedulers.traces.formats import read_trace
    from presage.schedulers.traces.summary import summarize

    found = summarize(read_trace(file))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        _print(found)


@app.command()
def convert(
    file: File,
    output: Output,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only theirs; of Philly a virtual cluster.")
    ] = None,
    from_s: Annotated[
        float, typer.Option(metavar="S", help="From this time on, which becomes 0.")
    ] = 0.0,
    to_s: Annotated[
        float, typer.Option(metavar="S", show_default="the end", help="Before this time.")
    ] = math.inf,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many of the first jobs.")
    ] = None,
    load: Load = 1.0,
) -> None:
    """Write a trace in our own format: all of it, or a part, chosen in the order of the options."""
    from presage.schedulers.traces import selecting
    from presage.schedulers.traces.formats import read_trace

    _check(output, load)
    for option, time_s in (("from-s", from_s), ("to-s", to_s)):
        if math.isnan(time_s):
            raise ConfigError(f"--{option} {time_s}: must be a number of seconds")
    trace = read_trace(file)
    if user is not None:
        trace = selecting.select_user(trace, user)
    if from_s > 0 or to_s < math.inf:
        trace = selecting.select_period(trace, from_s, to_s)
    if first is not None:
        trace = selecting.select_first(trace, first)
    trace = selecting.scale_load(trace, load)
    _write(output, trace)
    _tell(output, trace)


@app.command()
def generate(
    like: Annotated[Path, typer.Option(metavar="FILE", help=_FILE)],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="How many to make.")],
    output: Output,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal bytes.")] = 0,
    load: Load = 1.0,
) -> None:
    """Make jobs like those of a trace: arrivals, gangs, durations, users."""
    from presage.schedulers.traces import selecting
    from presage.schedulers.traces.formats import read_trace
    from presage.schedulers.traces.generator import generate_trace
    from presage.system.progress import counted_progress

    _check(output, load)
    with counted_progress(f"{jobs:,} jobs: read, draw, write", 3) as step:
        source = read_trace(like)
        step()
        made = selecting.scale_load(generate_trace(source, jobs, seed), load)
        step()
        _write(output, made)
        step()
    _tell(output, made)


def _check(output: Path, load: float) -> None:
    if not 0 < load < math.inf:
        raise ConfigError(f"--load {load}: must be a number > 0; 1 leaves the times as they are")
    if output.suffix == ".gz":
        raise ConfigError(f"--output {output}: written is plain csv; give it a name without .gz")
    if output.is_dir():
        raise ConfigError(f"--output {output}: that is a folder; name a file in it")


def _write(output: Path, trace: Trace) -> None:
    from presage.schedulers.traces.csv_file import write_trace
    from presage.system.atomic_file import write_atomically

    if not trace.jobs:
        raise ConfigError(f"{output}: no job is left to write; choose more of the trace")
    write_atomically(output, lambda partial: write_trace(partial, trace))


def _tell(output: Path, trace: Trace) -> None:
    say(f"{output}: {len(trace.jobs):,} jobs")
    tell_left_out(trace.left_out)


def tell_left_out(left_out: Mapping[str, int]) -> None:
    """Say how many rows of a file are no jobs, and why, if there are any."""
    if left_out:
        reasons = ", ".join(f"{rows:,} {why}" for why, rows in left_out.items())
        say(f"{sum(left_out.values()):,} rows left out: {reasons}")


def _print(found: Summary) -> None:
    from presage.system.terminal import Console, Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("jobs", f"{found.jobs:,}")
    table.add_row("span", _time(found.span_s))
    if found.devices_busy is not None:
        table.add_row("offered load", f"{found.devices_busy:,.1f} devices busy")
    if found.arrival_dispersion is not None:
        hourly = found.jobs / found.span_s * 3600
        table.add_row(
            "arrivals", f"{hourly:,.1f} an hour, index of dispersion {found.arrival_dispersion:.1f}"
        )
    durations = (f"{name} {_time(seconds)}" for name, seconds in found.duration_s.items())
    table.add_row("durations", ", ".join(durations))
    for name, counts in (("GPUs", found.gangs), ("users", found.users), ("models", found.models)):
        if counts:
            table.add_row(name, _shares(counts, found.jobs))
    Console().print(table, highlight=False)
    tell_left_out(found.left_out)


def _shares(counts: Mapping[str, int] | Mapping[int, int], jobs: int, most: int = 12) -> str:
    shown = [f"{name}: {count:,} ({count / jobs:.1%})" for name, count in counts.items()][:most]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"
