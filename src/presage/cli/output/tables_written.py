"""Rows that a command wrote into our tables, and those that it left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from presage.cli.output.json_output import print_json
from presage.system.text.terminal import Table, print_table, say
from presage.system.text.units import counted

if TYPE_CHECKING:
    from presage.pipelines.importers.import_run import Summary
    from presage.pipelines.profiling.campaign.merge import Merged
    from presage.pipelines.stages.ingest import IngestResult


def print_merged(merged: Merged, folder: Path, *, as_json: bool) -> None:
    """Print how many rows a merged campaign has."""
    if as_json:
        print_json(asdict(merged))
        return
    counts = ", ".join(f"{rows} {name}" for name, rows in merged.rows.items())
    say(f"{folder}: {counts}")
    if merged.duplicates:
        say(f"{merged.duplicates} rows were measured twice; the less noisy one is kept")


def print_ingested(done: IngestResult, folder: Path, *, as_json: bool) -> None:
    """Print how many outcomes were converted into tables, and why the others were not."""
    if as_json:
        print_json(asdict(done))
        return
    used = done.rows["outcomes"] - done.failed - done.unused
    table = Table(title=f"{counted(done.outcomes, 'outcome')} in the logs")
    _add_counts(table, {
        "used": {"measured": used, "failed": done.failed, "no new data": done.unused},
        "not used": {"duplicates": done.duplicates} | done.quarantined,
        "written": {name: rows for name, rows in done.rows.items() if rows},
    })  # fmt: skip
    print_table(table)
    say(f"{folder}: the next `dvc repro` trains on these tables")
    if done.quarantined:
        say("quarantine.jsonl in that folder lists the rows that were not used, with reasons")


def print_import(summary: Summary, *, as_json: bool) -> None:
    """Print the rows of each table that an import wrote, and those that it left out."""
    if as_json:
        print_json(asdict(summary))
        return
    title = f"{summary.source} ({summary.licence}) in {summary.folder}"
    table = Table(title=title, caption=summary.url)
    _add_counts(
        table, {"written": summary.tables, "left out": summary.skipped, "note": summary.notes}
    )
    print_table(table)


def _add_counts(table: Table, counts: Mapping[str, Mapping[str, int]]) -> None:
    table.add_column("")
    table.add_column("what")
    table.add_column("rows", justify="right")
    for group, rows_of in counts.items():
        for i, (what, rows) in enumerate(rows_of.items()):
            table.add_row("" if i else group, what, f"{rows:,}")
