"""``presage inc explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.inc.options import ArbiterConnection
from presage.system.text.terminal import say


@command(
    examples="""
    presage inc explain resnet
    presage inc explain resnet 1204
    """
)
def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a job.")],
    connection: ArbiterConnection,
    number: Annotated[
        int | None,
        typer.Argument(
            min=0,
            max=(1 << 63) - 1,
            metavar="[NUMBER]",
            show_default="the last one that all ranks have started",
            help="Number of an AllReduce of the job.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain why an AllReduce runs on the switch or by ring."""
    from presage.cli.output.json_output import message_content, print_json

    with connection.connected() as client:
        found = client.explain(job, number)
    if as_json:
        print_json(message_content(found))
        return
    say(f"{found.job}, AllReduce {found.number}: {found.summary}.")
    for line in found.details:
        say(f"  {line}")
