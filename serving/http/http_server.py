"""HTTP server with one thread per connection and a limited number of connections."""

from __future__ import annotations

import io
import logging
import re
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
    RequestReader,
    ResponseWriter,
)
from presage.serving.http.open_connections import Connections

_LOG = logging.getLogger(__name__)
_STOP_S = 5.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
# RFC 9112. Without control characters, so that no carriage return can hide a second field.
_REQUEST_LINE = re.compile(rb"[ -~\x80-\xff]*\r?\n")
_FIELD_LINE = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)?\r?\n")


class BoundedServer(ThreadingTCPServer):
    """Threading HTTP server with limits on its connections.

    A connection counts, and has a thread, from its acceptance until it is closed. The base class
    is not ``http.server.HTTPServer``, which resolves its own host name before it listens. With
    ``shared_port``, other processes may listen on the port too.
    """

    allow_reuse_address = True
    daemon_threads = True  # waiting handlers do not keep the process alive
    block_on_close = False  # stop() waits for a limited time
    request_queue_size = 1024  # when it is full, a client retries after a second

    def __init__(
        self,
        address: tuple[str, int],
        handler: Callable[[Any, Any, Any], BoundedHandler],
        *,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        shared_port: bool = False,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.allow_reuse_port = shared_port
        super().__init__(address, handler)
        self.connections = Connections(limits)
        self.stopping = False
        self._tls = tls

    def stop(self, grace_s: float = _STOP_S) -> None:
        """Accept no new connection and wait for the open ones."""
        self.stopping = True
        self.shutdown()
        self.connections.drain(grace_s)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its thread does the TLS handshake, which may block."""
        connection, client = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a connection is admitted; one with less progress may be evicted for it."""
        if self.connections.add(request, client_address[0]):
            return True
        if self._tls is None:
            request.settimeout(0)
            with suppress(OSError):
                request.send(_BUSY)
        return False

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and remove it from the table."""
        try:
            super().shutdown_request(request)
        finally:
            self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log why a connection ended, with a traceback for errors of this program."""
        error = sys.exception()
        is_internal = not isinstance(error, OSError)
        _LOG.log(
            logging.ERROR if is_internal else logging.DEBUG,
            "connection from %s ended: %s",
            client_address[0],
            one_line(repr(error)),
            exc_info=is_internal,
        )


class MalformedHeadError(Exception):
    """A line of the headers is no field."""


class FieldLines(io.BufferedIOBase):
    """Reader of the header fields of a request, for http.client.

    http.client ends the headers at a line that is no field and ignores the fields after it, such as
    Content-Length. The body would then be the next request (request smuggling).
    """

    def __init__(self, lines: io.BufferedIOBase) -> None:
        self._lines = lines

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line; raise MalformedHeadError if it is neither a field nor empty."""
        line = self._lines.readline(size)
        if line.endswith(b"\n") and not _FIELD_LINE.fullmatch(line):
            raise MalformedHeadError
        return line


class BoundedHandler(BaseHTTPRequestHandler):
    """Handler of the requests of one connection, within the limits of the server."""

    server: BoundedServer
    state: Connection
    raw_requestline: bytes
    # For requests that http.server rejects by itself.
    error_content_type = "text/plain"
    error_message_format = "%(message)s\n"

    def setup(self) -> None:
        """Set up streams that enforce the deadlines of the connection."""
        self.connection = self.request
        self.state = self.server.connections[self.request]
        with suppress(OSError):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.rfile = io.BufferedReader(RequestReader(self.state))
        self.wfile = io.BufferedWriter(ResponseWriter(self.state))

    def finish(self) -> None:
        """Close both streams, even if the client has disconnected."""
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
        """Wait for a request and answer it."""
        if self.state.requests:
            self.state.wait_for_request()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Parse the head; from then on the connection is not evicted."""
        lines = self.rfile
        self.rfile = FieldLines(lines)
        try:
            is_complete = self._is_request_line() and super().parse_request()
        except MalformedHeadError:
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST, "a header is malformed")
            is_complete = False
        finally:
            self.rfile = lines
        self.state.handle()
        return is_complete

    def _is_request_line(self) -> bool:
        """Return whether the request line has no control characters; reject the request if not."""
        if _REQUEST_LINE.fullmatch(self.raw_requestline):
            return True
        self.requestline = self.request_version = self.command = ""
        self.close_connection = True
        self.send_error(HTTPStatus.BAD_REQUEST, "the request line has a control character")
        return False

    def version_string(self) -> str:
        """Return the value of the Server header."""
        return "presage"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log at DEBUG level instead of writing to standard error."""
        _LOG.debug(format, *args)


class _WsgiHandler(BoundedHandler, WSGIRequestHandler):
    """Handler of one request per connection, so that no idle connection occupies a thread."""


class WsgiServer(BoundedServer):
    """WSGI server on a thread of its own, from construction until :meth:`stop`.

    Raises
    ------
    OSError, OverflowError
        The server cannot listen on the address.
    """

    def __init__(
        self,
        address: tuple[str, int],
        application: Callable[..., Iterable[bytes]],
        *,
        limits: HttpLimits,
    ) -> None:
        super().__init__(address, _WsgiHandler, limits=limits)
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
        """Accept no new connection and wait for the open ones."""
        super().stop(grace_s)
        self._serving.join()
