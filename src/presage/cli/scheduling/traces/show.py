"""``presage trace show``."""

from __future__ import annotations

from dataclasses import asdict

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.output.json_output import print_json
from presage.cli.output.trace import print_summary
from presage.cli.scheduling.traces.options import TraceFile


@command(examples="presage trace show examples/trace.csv")
def show(file: TraceFile, as_json: Json = False) -> None:
    """Summarize a trace: load, arrivals, gangs, durations, users and rows left out."""
    from presage.schedulers.traces.formats import read_trace
    from presage.schedulers.traces.summary import summarize

    found = summarize(read_trace(file))
    if as_json:
        print_json(asdict(found), allow_nan=False)
    else:
        print_summary(found)
