"""Options that say which files a simulation writes, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from presage.cli.options.common import create_folder

_PANEL = "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Files to write, and the form of the printed result."""

    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write every event and decision to DIR/POLICY.jsonl.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Write an HTML report with metrics and timelines.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write DIR/jobs.parquet and DIR/intervals.parquet.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Compare with an earlier run: FILE is what it printed with --json.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=_PANEL),
    ] = False

    def check(self) -> None:
        """Check the files before the minutes that a large trace takes.

        Raises
        ------
        ConfigError
            A folder cannot be created, a report cannot be written, or the earlier run is not valid.
        """
        from presage.pipelines.stages.stage import check_report_path

        for option, folder in (("--log", self.log), ("--parquet", self.parquet)):
            if folder is not None:
                create_folder(folder, option)
        if self.report is not None:
            check_report_path(self.report)
            import_module("jinja2")
        if self.parquet is not None:
            import_module("pyarrow")
        if self.baseline is not None:
            from presage.schedulers.report.run_comparison import read_run

            read_run(self.baseline)
