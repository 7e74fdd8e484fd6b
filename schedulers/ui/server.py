"""The pages' server: HTTP/1.1, a thread for each connection."""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from presage.features.errors import ServiceError
from presage.schedulers.live.client import ClusterClient
from presage.schedulers.ui.lookout import Lookout
from presage.schedulers.ui.pages import application
from presage.serving.listen import address_of
from presage.serving.listen import target as target_of
from presage.serving.options import Options

_SILENT_S = 60.0  # that a connection may be
_LOG = logging.getLogger(__name__)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "presage", ""
    timeout = _SILENT_S

    def version_string(self) -> str:
        return self.server_version

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        _LOG.debug(message, *args)


def serve_pages(
    connect: Callable[[], ClusterClient],
    target: str,
    *,
    host: str,
    port: int,
    allow_remote: bool,
    on_ready: Callable[[str], None],
    stopped: threading.Event,
) -> None:
    """Serve until ``stopped`` is set.

    Parameters
    ----------
    connect : callable
        A new connection to the controller, which need not be there.
    target : str
        Where that is, to be shown.
    on_ready : callable
        Called with the pages' address.

    Raises
    ------
    ServiceError
        The host or port cannot be listened on, or is beyond loopback without leave.
    """
    address = address_of(Options(host=host, port=port, allow_remote=True))
    local = ipaddress.ip_address(address).is_loopback
    if not local and not allow_remote:
        raise ServiceError(
            f"{host} is not a loopback address, and the page shows jobs, commands and logs to "
            "whoever can reach it; listen on 127.0.0.1 and forward the port (ssh -L), or pass "
            "--allow-remote on a network that you trust"
        )
    hosts = frozenset({"localhost", "127.0.0.1", "::1", address, host.lower()}) if local else None
    with Lookout(connect) as lookout:
        app = application(lookout, target, hosts=hosts)
        server = make_server(address, port, app, threaded=True, request_handler=_Handler)
        serving = threading.Thread(target=server.serve_forever, args=(0.1,), name="pages")
        serving.start()
        try:
            on_ready(f"http://{target_of(host, server.port)}/")
            stopped.wait()
        finally:
            server.shutdown()
            serving.join()
            server.server_close()
