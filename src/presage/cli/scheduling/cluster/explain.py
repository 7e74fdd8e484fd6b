"""``presage cluster explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import ConnectionOptions, Job
from presage.system.text.terminal import print_table, say


@command(
    examples="""
    presage cluster explain resnet-1f2e3d4c
    presage cluster explain --short resnet-1f2e3d4c
    """
)
def explain(
    job: Job,
    connection: ConnectionOptions,
    short: Annotated[
        bool, typer.Option("--short", help="Print the reason in one line, without tables.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain why a job waits or runs where it does, with its forecasts and history.

    An elastic job also has its workers and its number of devices over time, with reasons.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.tables import explanation_tables

    with connection.connected() as client:
        found = client.explain(job)
    if as_json:
        print_json(message_content(found))
        return
    say(f"{job}: {found.summary}.")
    for table in () if short else explanation_tables(found):
        print_table(table)
