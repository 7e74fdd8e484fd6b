"""``presage cluster ui``: the cluster as a page that is always of now."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from presage.cli.scheduling.cluster.options import (
    HERE,
    Authority,
    Certificate,
    Controller,
    Key,
    Token,
    check_controller,
)
from presage.serving.client.credentials import read_credentials
from presage.system.terminal import say

HOST, PORT = "127.0.0.1", 50062


def ui(
    controller: Controller = HERE,
    host: Annotated[str, typer.Option(help="To listen on.")] = HOST,
    port: Annotated[int, typer.Option(help="To listen on; 0 for any that is free.")] = PORT,
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Listen beyond loopback, unencrypted."),
    ] = False,
    token_file: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
) -> None:
    """Show nodes, shares, forecasts and the queue in a browser, until SIGTERM or Ctrl-C.

    It prints an address with a token, which is valid until the command ends: browsers that have not
    opened it are refused.
    """
    from presage.schedulers.live.client.client import ClusterClient
    from presage.schedulers.live.ui.page_server import serve_pages
    from presage.serving.server.log import log_as_json

    check_controller(controller)
    credentials = read_credentials(token_file, ca, cert, key)
    log_as_json()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve_pages(
        lambda: ClusterClient(controller, credentials=credentials, timeout_s=5.0),
        controller,
        host=host,
        port=port,
        allow_remote=allow_remote,
        on_ready=lambda url: say(f"the cluster at {controller} is shown at {url}", err=True),
        stopped=stopped,
    )
