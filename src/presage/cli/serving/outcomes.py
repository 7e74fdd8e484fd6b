"""``presage outcomes``: outcomes of jobs that clients reported to servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import add_command, command, group
from presage.cli.options.common import Json
from presage.cli.serving.options import Logs

_EXAMPLES = """
    presage outcomes ingest
    presage outcomes ingest /var/lib/presage/outcomes --to data/outcomes/tables
    """
app = group("Convert reported outcomes of jobs into training data.", examples=_EXAMPLES)


@app.callback()
def _outcomes() -> None:
    """Make a group of the only command."""


@command(examples=_EXAMPLES)
def ingest(
    logs: Logs = None,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of tables to write. It is replaced.")
    ] = Path("data/outcomes/tables"),
    profiles: Annotated[
        Path, typer.Option(metavar="DIR", help="Campaign folders, for known jobs and devices.")
    ] = Path("data/profiles"),
    pretrained: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="data/pretrained, if it exists",
            help="Pretrained networks, for known devices.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert all reported outcomes into tables that the next `dvc repro` trains on.

    Repeating the command gives the same tables. Invalid outcomes are written to quarantine.jsonl
    in the same folder, with reasons.
    """
    from presage.cli.output.tables_written import print_ingested
    from presage.pipelines.reported.recency import read_recency
    from presage.pipelines.reported.withdrawn import read_withdrawals
    from presage.pipelines.stages.ingest import PRETRAINED
    from presage.pipelines.stages.ingest import ingest as ingest_logs
    from presage.system.files.data_folder import data_folder

    done = ingest_logs(
        logs or [data_folder() / "outcomes"],
        to,
        recency=read_recency(),
        withdrawals=read_withdrawals(),
        profiles=profiles,
        pretrained=pretrained or (PRETRAINED if PRETRAINED.is_dir() else None),
    )
    print_ingested(done, to, as_json=as_json)


add_command(app, ingest)
