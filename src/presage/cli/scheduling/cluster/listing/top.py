"""``presage cluster top``."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.errors import ServiceError
from presage.system.text.terminal import clear_screen, print_table, say


@command(
    examples="""
    presage cluster top
    presage cluster top --once
    """
)
def top(
    connection: ConnectionOptions,
    once: Annotated[bool, typer.Option("--once", help="Print the table once.")] = False,
    interval_s: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds between two tables.")
    ] = 2.0,
    user: Annotated[
        str, typer.Option(metavar="NAME", show_default="all users", help="Only jobs of this user.")
    ] = "",
) -> None:
    """Show the running jobs, their progress, use of devices and slowdown, until Ctrl-C.

    The usage is that of each device, the memory is the current one. The slowdown is the measured
    run time of a step, against the predicted one on an exclusive device. A pipe gets one table.
    """
    from presage.cli.scheduling.cluster.listing.top_table import top_table

    is_shown_once = once or not sys.stdout.isatty()
    with connection.connected() as client:
        while True:
            try:
                found = client.list(user=user)
            except ServiceError as error:
                if is_shown_once:
                    raise
                say(f"{error}; retrying", err=True)
            else:
                if not is_shown_once:
                    clear_screen()
                print_table(top_table(found))
            if is_shown_once:
                return
            time.sleep(interval_s)
