"""HTTP server of the pages, with a limited number of connections."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.page_access import PageAccess
from presage.schedulers.live.ui.pages import application
from presage.schedulers.live.ui.poller import Poller
from presage.serving.authentication.listen import port_in_use_message, resolve_address
from presage.serving.authentication.listen import target as target_of
from presage.serving.http.connection import HttpLimits
from presage.serving.http.http_server import WsgiServer
from presage.serving.server_options import Options

_LIMITS = HttpLimits(connections=64, per_peer=48)


def serve_pages(
    connect: Callable[[], ClusterClient],
    target: str,
    *,
    host: str,
    port: int,
    allow_remote: bool,
    on_ready: Callable[[str], None],
    stopped: threading.Event,
    allow_actions: bool = False,
) -> None:
    """Serve the pages until ``stopped`` is set.

    Parameters
    ----------
    connect : callable
        Returns a new connection to the controller, which need not be running.
    target : str
        Address of the controller, for display.
    on_ready : callable
        Called with the address that contains the access token.
    allow_actions : bool
        Whether viewers may act on jobs and nodes with the credentials of the connection.

    Raises
    ------
    ServiceError
        The host or port cannot be bound, or is not loopback and ``allow_remote`` is false or
        ``allow_actions`` is true.
    """
    address = resolve_address(Options(host=host, port=port, allow_remote=True))
    local = ipaddress.ip_address(address).is_loopback
    if not local and not allow_remote:
        raise ServiceError(
            f"{host} is not a loopback address, and the page and its token are sent unencrypted; "
            "listen on 127.0.0.1 and forward the port (ssh -L), or pass --allow-remote on a "
            "network that you trust"
        )
    if not local and allow_actions:
        raise ServiceError(
            f"{host} is not a loopback address, and actions would be open to all that read the "
            "unencrypted page; listen on 127.0.0.1 and forward the port (ssh -L), or leave out "
            "--allow-actions"
        )
    hosts = frozenset({"localhost", "127.0.0.1", "::1", address, host.lower()}) if local else None
    with Poller(connect) as poller:
        access = PageAccess()
        acting = connect if allow_actions else None
        app = application(poller, target, access, hosts=hosts, connect=acting)
        try:
            server = WsgiServer((address, port), app, limits=_LIMITS)
        except OSError as error:  # taken since the check
            raise ServiceError(port_in_use_message(host, port)) from error
        try:
            on_ready(access.link(f"http://{target_of(host, server.port)}/"))
            stopped.wait()
        finally:
            server.stop()
