"""``presage cluster cancel``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.errors import ConfigError, UnknownJobError
from presage.system.text.terminal import say

_Jobs = Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="Names of jobs.")]


@command(
    examples="""
    presage cluster cancel resnet-1f2e3d4c
    presage cluster cancel --user ann
    """
)
def cancel(
    connection: ConnectionOptions,
    jobs: _Jobs = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="Cancel all jobs of this user that are not over.")
    ] = "",
    everything: Annotated[
        bool,
        typer.Option("--all", help="Cancel all jobs that are not over and that you may cancel."),
    ] = False,
) -> None:
    """Cancel jobs: stop them, or remove them from the queue.

    Does not ask. With --user and --all it prints the names of the jobs that it cancelled.
    """
    if sum((bool(jobs), bool(user), everything)) != 1:
        raise ConfigError("give names of jobs, --user or --all: exactly one of these")
    with connection.connected() as client:
        cancelled = client.cancel(jobs or (), user=user, everything=everything)
    if jobs:
        return
    for job_id in cancelled:
        say(job_id)
    if not cancelled:
        owner = f"of {user!r} " if user else ""
        raise UnknownJobError(
            f"nothing was cancelled: no job {owner}is left; `presage cluster ps` lists jobs"
        )
