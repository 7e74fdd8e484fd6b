"""``presage cluster logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.output.log_output import print_log
from presage.cli.scheduling.cluster.options import ConnectionOptions, Job


@command(examples="presage cluster logs --follow resnet-1f2e3d4c")
def logs(
    job: Job,
    connection: ConnectionOptions,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job is over.")
    ] = False,
) -> None:
    """Print the standard output and standard error of a job.

    Of an elastic job it prints the output of the first worker; JOB/m2 is that of worker m2.

    A terminal shows control sequences other than colours in escaped form. A pipe gets the bytes
    unchanged.
    """
    with connection.connected() as client:
        print_log(client.logs(job, follow=follow))
