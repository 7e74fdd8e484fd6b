"""``presage cluster ps``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.listing.options import Output, OutputOption, SelectionOptions
from presage.cli.scheduling.cluster.options import AnyJobs, ConnectionOptions
from presage.errors import ConfigError, UnknownJobError
from presage.system.text.known_names import did_you_mean
from presage.system.text.terminal import print_table, say

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


@command(
    examples="""
    presage cluster ps
    presage cluster ps --all -o wide
    presage cluster ps --nodes

    # Cancel all jobs of a user that wait
    presage cluster ps --user ann --state waiting -o name |
      xargs -r -d '\\n' presage cluster cancel --
    """
)
def ps(
    connection: ConnectionOptions,
    jobs: AnyJobs = None,
    *,
    selection: SelectionOptions,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List nodes and their devices instead.")
    ] = False,
    output: OutputOption = None,
    as_json: Json = False,
) -> None:
    """List jobs or nodes.

    Jobs that are named are listed even if they are over. The age is the time since the submission;
    "left" is the rest of the run time by forecast and progress. An elastic job has its number of
    devices and its range, such as 3 of 1-4, and its nodes with their numbers of workers.
    """
    if nodes and (jobs or selection.user or selection.ended):
        other = "names of jobs" if jobs else "options that select jobs"
        raise ConfigError(f"--nodes and {other} exclude each other; give one of them")
    chosen = Output.JSON if as_json else output
    with connection.connected() as client:
        found = client.list(
            jobs or (),
            ended=selection.ended,
            user=selection.user,
            node="" if nodes else selection.node,
            states=selection.states or (),
        )
    if nodes:
        _print_nodes(found, selection.node, chosen)
    else:
        _print_jobs(found, chosen, why=selection.ended or bool(jobs))
    if found.forecaster_error:
        say(f"forecasts: {found.forecaster_error}", err=True)


def _print_jobs(found: pb.ListResponse, output: Output | None, *, why: bool) -> None:
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.listing.job_table import job_table, wide_job_table

    if output is Output.JSON:
        print_json([message_content(row) for row in found.jobs])
    elif output is Output.NAME:
        for row in found.jobs:
            say(row.job.job_id)
    elif output is Output.WIDE:
        print_table(wide_job_table(found), is_whole=True)
    else:
        print_table(job_table(found, why=why))
    if found.remaining_job_count:
        say(
            f"{found.remaining_job_count:,} more jobs are not listed; "
            "`presage cluster explain` shows each",
            err=True,
        )


def _print_nodes(found: pb.ListResponse, name: str, output: Output | None) -> None:
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.listing.node_table import node_table

    names = [node.name for node in found.nodes]
    if name and name not in names:
        raise UnknownJobError(f"there is no node {name!r}; {did_you_mean(name, names)}")
    rows = [node for node in found.nodes if name in ("", node.name)]
    if output is Output.JSON:
        print_json([message_content(row) for row in rows])
    elif output is Output.NAME:
        for row in rows:
            say(row.name)
    else:
        is_wide = output is Output.WIDE
        print_table(node_table(rows, is_wide=is_wide), is_whole=is_wide)
