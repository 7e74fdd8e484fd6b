"""``presage cluster drain``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.errors import ConfigError
from presage.system.text.terminal import say


@command(
    examples="""
    presage cluster drain node-1 --evict --reason "fan replaced"
    presage cluster drain node-1 --undo

    # Withdraw device 3 of a node, and return it to service
    presage cluster drain node-1/3
    presage cluster drain node-1/3 --undo
    """
)
def drain(
    node: Annotated[
        str, typer.Argument(metavar="NODE[/DEVICE]", help="Name of a node, or of a device of it.")
    ],
    connection: ConnectionOptions,
    evict: Annotated[
        bool,
        typer.Option(
            "--evict", help="Preempt its jobs, which save their state and restart elsewhere."
        ),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Schedule jobs on it again.")] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; `presage cluster ps --nodes` shows it.")
    ] = "",
) -> None:
    """Schedule no more jobs on a node or a device, and print the jobs that still run on it.

    Jobs on a single device are always preempted. A device that was withdrawn because it failed
    returns to service with --undo.
    """
    if undo and (evict or reason):
        other = "--evict" if evict else "--reason"
        raise ConfigError(f"{other} and --undo exclude each other; give one of them")
    with connection.connected() as client:
        for job_id in client.drain(node, undo=undo, evict=evict, reason=reason):
            say(job_id)
