"""``presage trace convert``."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.traces.options import OutputOptions, TraceFile
from presage.errors import ConfigError


@command(
    examples="""
    presage trace convert cluster_job_log.gz --output philly.csv
    presage trace convert philly.csv --first 1000 --load 2 --output small.csv
    """
)
def convert(
    file: TraceFile,
    *,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only jobs of this user (in Philly: of this virtual cluster)."
        ),
    ] = None,
    from_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="Only jobs from this time on; it becomes 0.")
    ] = 0.0,
    to_s: Annotated[
        float,
        typer.Option(metavar="SECONDS", show_default="the end", help="Only jobs before this time."),
    ] = math.inf,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")
    ] = None,
    written: OutputOptions,
) -> None:
    """Convert a trace, or a part of it, to our CSV format.

    The selections are applied in the order in which the options are listed.
    """
    from presage.schedulers.traces import selecting
    from presage.schedulers.traces.formats import read_trace

    written.check()
    for option, time_s in (("--from-s", from_s), ("--to-s", to_s)):
        if math.isnan(time_s):
            raise ConfigError(f"{option} {time_s}: must be a number of seconds")
    trace = read_trace(file)
    if user is not None:
        trace = selecting.select_user(trace, user)
    if from_s > 0 or to_s < math.inf:
        trace = selecting.select_period(trace, from_s, to_s)
    if first is not None:
        trace = selecting.select_first(trace, first)
    trace = written.scale_load(trace)
    written.write(trace)
    written.say_written(trace)
