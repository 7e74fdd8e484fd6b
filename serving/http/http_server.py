"""HTTP server with a thread for each of a bounded number of connections."""

from __future__ import annotations

import io
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from presage.errors import one_line
from presage.serving.http.connection import (
    Connection,
    HeadTooLargeError,
    HttpLimits,
    Incoming,
    Outgoing,
)
from presage.serving.http.open_connections import Connections

_LOG = logging.getLogger(__name__)
_STOP_S = 5.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


class BoundedServer(ThreadingTCPServer):
    """Not http.server's, which asks DNS for its own name before it listens.

    A connection counts, and has a thread, from when it is accepted to when it is closed.
    """

    allow_reuse_address = True
    daemon_threads = True  # the process can end whatever a handler waits for
    block_on_close = False  # stop() waits, for a bounded time
    request_queue_size = 1024  # where it is full, a client waits a second before it tries again

    def __init__(
        self,
        where: tuple[str, int],
        handler: Callable[[Any, Any, Any], BoundedHandler],
        *,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        super().__init__(where, handler)
        self.connections = Connections(limits)
        self.stopping = False
        self._tls = tls

    def stop(self, grace_s: float = _STOP_S) -> None:
        """Take no new connection, and wait for those that are open."""
        self.stopping = True
        self.shutdown()
        self.connections.end(grace_s)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake is left to the connection's thread, as it may block."""
        connection, client = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for it; one that made less progress gives way."""
        if self.connections.add(request, client_address[0]):
            return True
        if self._tls is None:
            request.settimeout(0)
            with suppress(OSError):
                request.send(_BUSY)
        return False

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and free its place."""
        try:
            super().shutdown_request(request)
        finally:
            self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log why a connection ended: a traceback only for an error of this program."""
        error = sys.exception()
        ours = not isinstance(error, OSError)
        _LOG.log(
            logging.ERROR if ours else logging.DEBUG,
            "connection from %s ended: %s",
            client_address[0],
            one_line(repr(error)),
            exc_info=ours,
        )


class BoundedHandler(BaseHTTPRequestHandler):
    """Requests of one connection, read and answered within its limits."""

    server: BoundedServer
    state: Connection
    # For what http.server refuses by itself.
    error_content_type = "text/plain"
    error_message_format = "%(message)s\n"

    def setup(self) -> None:
        """Read and write through the connection's deadlines."""
        self.connection = self.request
        self.state = self.server.connections[self.request]
        with suppress(OSError):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.rfile = io.BufferedReader(Incoming(self.state))
        self.wfile = io.BufferedWriter(Outgoing(self.state))

    def finish(self) -> None:
        """Close both files, also where the client is gone."""
        with suppress(OSError):
            self.wfile.close()
        self.rfile.close()

    def handle(self) -> None:
        """Answer requests until the connection ends."""
        try:
            super().handle()
        except HeadTooLargeError:
            self.requestline = self.request_version = self.command = ""
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        if self.state.requests:
            self.state.wait_for_request()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Parse the head; from then on the connection does not give way."""
        is_complete = super().parse_request()
        self.state.handle()
        return is_complete

    def version_string(self) -> str:
        """Return what the header Server says."""
        return "presage"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log at DEBUG, not to standard error."""
        _LOG.debug(format, *args)


class _WsgiHandler(BoundedHandler, WSGIRequestHandler):
    """One request a connection, so that no idle connection keeps a thread."""


class WsgiServer(BoundedServer):
    """A WSGI application on a thread of its own, from construction to :meth:`stop`.

    Raises
    ------
    OSError, OverflowError
        The address cannot be listened on.
    """

    def __init__(
        self,
        where: tuple[str, int],
        application: Callable[..., Iterable[bytes]],
        *,
        limits: HttpLimits,
    ) -> None:
        super().__init__(where, _WsgiHandler, limits=limits)
        host, self.port = self.server_address[:2]
        self.base_environ = {
            "SERVER_NAME": str(host),
            "SERVER_PORT": str(self.port),
            "GATEWAY_INTERFACE": "CGI/1.1",
            "REMOTE_HOST": "",
            "CONTENT_LENGTH": "",
            "SCRIPT_NAME": "",
        }
        self._application = application
        self._serving = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="http", daemon=True
        )
        self._serving.start()

    def get_app(self) -> Callable[..., Iterable[bytes]]:
        """Return the application, for wsgiref."""
        return self._application

    def stop(self, grace_s: float = _STOP_S) -> None:
        """Take no new connection, and wait for those that are open."""
        super().stop(grace_s)
        self._serving.join()
