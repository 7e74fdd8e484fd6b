"""``presage cluster watch``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import AnyJobs, ConnectionOptions
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


@command(
    examples="""
    presage cluster watch
    presage cluster watch resnet-1f2e3d4c --after 0 --json
    """
)
def watch(
    connection: ConnectionOptions,
    jobs: AnyJobs = None,
    after: Annotated[
        int,
        typer.Option(
            metavar="ENTRY",
            show_default="-1, new events only",
            help="Journal entry after which to start; 0 prints all events.",
        ),
    ] = -1,
    as_json: Json = False,
) -> None:
    """Print events as they happen, one per line."""
    from presage.cli.output.json_output import print_message

    with connection.connected() as client:
        for event in client.watch(jobs or (), after=after):
            if as_json:
                print_message(event)
            else:
                say(_line(event))


def _line(event: pb.Event) -> str:
    from presage.cli.scheduling.cluster.tables import detail_of
    from presage.schedulers.live.client.event_text import event_name

    at = time.strftime("%H:%M:%S", time.localtime(event.time_unix_s))
    about = " ".join(filter(None, (event.job_id, event.node, detail_of(event))))
    return f"{at} {event_name(event.type)} {about}"
