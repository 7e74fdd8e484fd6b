"""``presage cluster priority``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions, Job
from presage.errors import InvalidJobError

_MOST = 2**31 - 1


@command(
    examples="""
    presage cluster priority resnet-1f2e3d4c 10
    presage cluster priority resnet-1f2e3d4c -5
    """,
    context_settings={"ignore_unknown_options": True},  # a negative priority is no option
)
def priority(
    job: Job,
    value: Annotated[
        int, typer.Argument(metavar="PRIORITY", help="New priority; higher starts first.")
    ],
    connection: ConnectionOptions,
) -> None:
    """Change the priority of a job within its class, latency-sensitive or best-effort."""
    if not -_MOST <= value <= _MOST:
        raise InvalidJobError(f"priority {value}: must be a number of at most {_MOST:,}")
    with connection.connected() as client:
        client.set_priority([job], value)
