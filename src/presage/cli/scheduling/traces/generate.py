"""``presage trace generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.traces.options import TRACE_FORMATS, OutputOptions


@command(
    examples="""
    presage trace generate --like philly.csv --jobs 100000 \\
      --output large.csv --seed 7
    """
)
def generate(
    like: Annotated[Path, typer.Option(metavar="FILE", help=TRACE_FORMATS)],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of jobs to generate.")],
    written: OutputOptions,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed. Equal seeds give equal files.")
    ] = 0,
) -> None:  # fmt: skip
    """Generate jobs with the statistics of a trace: arrivals, gangs, durations and users."""
    from presage.schedulers.traces.formats import read_trace
    from presage.schedulers.traces.generator import generate_trace
    from presage.system.text.progress import counted_progress

    written.check()
    with counted_progress(f"{jobs:,} jobs: read, generate, write", 3) as step:
        source = read_trace(like)
        step()
        trace = written.scale_load(generate_trace(source, jobs, seed))
        step()
        written.write(trace)
        step()
    written.say_written(trace)
