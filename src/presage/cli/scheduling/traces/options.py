"""Arguments and options of ``presage trace``, and the trace file that it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.output.trace import say_left_out
from presage.errors import ConfigError
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.traces.trace import Trace

TRACE_FORMATS = (
    "Trace: our CSV format, Philly, ITP or openb, plain or .gz, or a log of `presage simulate`."
)
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help=TRACE_FORMATS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The trace to write."""

    output: Annotated[
        Path, typer.Option(metavar="FILE.csv", help="File to write, in our CSV format.")
    ]
    load: Annotated[
        float,
        typer.Option(
            metavar="FACTOR", help="Factor on the arrival rate: arrival times are divided by it."
        ),
    ] = 1.0

    def check(self) -> None:
        """Raise a ConfigError if the options are invalid."""
        if not 0 < self.load < math.inf:
            raise ConfigError(f"--load {self.load}: must be a finite number above 0")
        if self.output.suffix == ".gz":
            raise ConfigError(f"--output {self.output}: the file is plain CSV; omit .gz")
        if self.output.is_dir():
            raise ConfigError(f"--output {self.output}: is a folder; name a file in it")

    def scale_load(self, trace: Trace) -> Trace:
        """Return a trace with its arrival times divided by --load."""
        from presage.schedulers.traces import selecting

        return selecting.scale_load(trace, self.load)

    def write(self, trace: Trace) -> None:
        """Write a trace.

        Raises
        ------
        ConfigError
            It has no job.
        """
        from presage.schedulers.traces.csv_file import write_trace
        from presage.system.files.atomic_file import write_atomically

        if not trace.jobs:
            raise ConfigError(f"{self.output}: no job is selected; select more of the trace")
        write_atomically(self.output, lambda partial: write_trace(partial, trace))

    def say_written(self, trace: Trace) -> None:
        """Print how many jobs were written."""
        say(f"{self.output}: {len(trace.jobs):,} jobs")
        say_left_out(trace.left_out)
