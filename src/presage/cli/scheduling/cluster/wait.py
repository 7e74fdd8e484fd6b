"""``presage cluster wait``."""

from __future__ import annotations

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions, Jobs
from presage.errors import ServiceError
from presage.system.text.terminal import say


@command(examples="presage cluster wait resnet-1f2e3d4c && echo finished")
def wait(jobs: Jobs, connection: ConnectionOptions) -> None:
    """Wait until jobs are over; the exit status is 1 if one of them did not finish."""
    from presage.cli.scheduling.cluster.tables import phase_of
    from presage.schedulers.live.client.waiting import jobs_as_completed
    from presage.schedulers.v1 import cluster_pb2 as pb

    def say_retry(error: ServiceError) -> None:
        say(f"{error}; retrying until it responds", err=True)

    all_finished = True
    with connection.connected() as client:
        for row in jobs_as_completed(client, jobs, on_away=say_retry):
            if row.phase != pb.FINISHED:
                all_finished = False
                say(f"job {row.job.job_id!r} is {phase_of(row)}: {row.reason}", err=True)
    if not all_finished:
        raise typer.Exit(1)
