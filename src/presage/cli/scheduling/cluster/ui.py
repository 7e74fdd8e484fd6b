"""``presage cluster ui``: a page with the current state of the cluster."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.system.text.terminal import say


@command(
    examples="""
    presage cluster ui --port 50062

    # Cancel and hold jobs, and drain nodes, from the page
    presage cluster ui --allow-actions --token-file ops.token
    """
)
def ui(
    connection: ConnectionOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 50062,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond loopback, without encryption.")
    ] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let viewers cancel, hold and release jobs, and drain and resume nodes, with the "
            "token of this command. Not with --allow-remote.",
        ),
    ] = False,
) -> None:
    """Show nodes, jobs, forecasts, the queue and their history in a browser.

    The command prints an address with a token, which is valid until the command ends. Browsers
    that have not opened that address are rejected. Runs until SIGTERM or Ctrl-C.
    """
    from presage.schedulers.live.ui.page_server import serve_pages
    from presage.serving.server.log import log_as_json

    new_client = connection.client_factory(timeout_s=5.0)
    log_as_json()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve_pages(
        new_client, connection.controller, host=host, port=port, allow_remote=allow_remote,
        on_ready=lambda url: say(f"cluster {connection.controller}: {url}", err=True),
        stopped=stopped, allow_actions=allow_actions,
    )  # fmt: skip
