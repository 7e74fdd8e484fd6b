"""``presage outcomes``: what jobs that were reported really did, as tables to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="What really happened to jobs, as it was reported to servers.")


@app.callback()
def _outcomes() -> None:
    """A group, even of one command."""


@app.command()
def ingest(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[LOG...]",
            help="Outcome logs of servers, which may be running, or a folder of *.db.",
            show_default="those of `presage serve`",
        ),
    ] = None,
    to: Annotated[
        Path, typer.Option(help="Folder of tables to write; replaced as a whole.")
    ] = Path("data/outcomes/tables"),
    profiles: Annotated[
        Path, typer.Option(help="Campaign folders, whose jobs and devices are known.")
    ] = Path("data/profiles"),
    pretrained: Annotated[
        Path | None, typer.Option(help="Networks to go on from, whose devices are known.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Make tables of all outcomes so far, which the next `dvc repro` learns from.

    Reading them again changes nothing. What cannot be is in quarantine.jsonl there, with the
    reason.
    """
    from presage.cli.render import print_ingested
    from presage.pipelines.reported.recency import read_recency
    from presage.pipelines.reported.withdrawn import read_withdrawals
    from presage.pipelines.stages.ingest import PRETRAINED
    from presage.pipelines.stages.ingest import ingest as ingest_logs
    from presage.system.data_folder import data_folder

    start = pretrained or (PRETRAINED if PRETRAINED.is_dir() else None)
    done = ingest_logs(
        logs or [data_folder() / "outcomes"],
        to,
        recency=read_recency(),
        withdrawals=read_withdrawals(),
        profiles=profiles,
        pretrained=start,
    )
    print_ingested(done, to, as_json=as_json)
