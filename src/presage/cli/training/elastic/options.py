"""Options and arguments of ``presage elastic``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.system.files.data_folder import data_folder

JobName = Annotated[str, typer.Argument(help="Name of the job.")]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        show_default="elastic, in the data folder",
        help="Folder with the journal, log and address of each job's leader.",
    ),
]


def state_folder(state: Path | None) -> Path:
    """Return the folder of elastic jobs."""
    return state or data_folder() / "elastic"
