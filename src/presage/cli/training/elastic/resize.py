"""``presage elastic resize``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.training.elastic.options import JobName, StateFolder, state_folder
from presage.system.text.terminal import say


@command(examples="presage elastic resize digits 4")
def resize(
    job: JobName,
    workers: Annotated[int, typer.Argument(min=1, help="Number of workers.")],
    state: StateFolder = None,
) -> None:
    """Change the number of workers of a running job.

    New workers load while the job trains, and join at the end of a step. Workers of the last ranks
    leave at the end of a step.
    """
    from presage.training.job_folder import JobFolder
    from presage.training.local_job import request

    folder = JobFolder(state_folder(state), job)
    request(folder, {"op": "resize", "workers": workers})
    say(f"job {job!r} changes to {workers} workers")
