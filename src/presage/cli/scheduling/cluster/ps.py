"""``presage cluster ps``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import AnyJobs, ConnectionOptions
from presage.errors import ConfigError
from presage.system.text.terminal import print_table, say


@command(
    examples="""
    presage cluster ps
    presage cluster ps --all
    presage cluster ps --nodes
    """
)
def ps(
    connection: ConnectionOptions,
    jobs: AnyJobs = None,
    everything: Annotated[bool, typer.Option("--all", help="Include jobs that are over.")] = False,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List nodes and their devices instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List jobs or nodes.

    Jobs that are named are listed even if they are over. An elastic job has its number of devices
    and its range, such as 3 of 1-4, and its nodes with their numbers of workers, such as n0 x2, n1.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.tables import job_table, node_table

    if nodes and jobs:
        raise ConfigError("--nodes and names of jobs exclude each other; give one of them")
    with connection.connected() as client:
        found = client.list(jobs or (), ended=everything)
    if as_json:
        print_json([message_content(row) for row in (found.nodes if nodes else found.jobs)])
    else:
        why = everything or bool(jobs)
        print_table(node_table(found) if nodes else job_table(found, why=why))
    if found.remaining_job_count and not nodes:
        say(
            f"{found.remaining_job_count:,} more jobs are not listed; "
            "`presage cluster explain` shows each",
            err=True,
        )
    if found.forecaster_error:
        say(f"forecasts: {found.forecaster_error}", err=True)
