"""``presage slurm files``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.slurm.options import STATE, State
from presage.system.text.terminal import say


@command(examples="presage slurm files /etc/slurm")
def files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of slurm.conf.")],
    state: State = STATE,
) -> None:
    """Write job_submit.lua and the epilog for this state folder; replace no file."""
    from presage.schedulers.slurm.site_files import write_site_files

    for path in write_site_files(folder, state):
        say(str(path))
