"""JSON over HTTP/1.1, with connections that are kept, a thread for each."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple

from presage.features.errors import InvalidRequestError, ServiceError, one_line
from presage.serving.options import Tls

_LOG = logging.getLogger(__name__)


class Route(NamedTuple):
    """How a path is answered: what ``read`` makes of the body goes to ``act``.

    ``read`` raises InvalidRequestError (400); ``act`` returns what is sent as JSON, or as it is
    where it is text, and all it raises is an error of ours (500).
    """

    method: str
    read: Callable[[bytes], Any]
    act: Callable[[Any], Any]


class _Answer(NamedTuple):
    status: HTTPStatus
    content: str
    content_type: str = "text/plain"
    allow: str | None = None  # the method to use


class HttpServer(ThreadingTCPServer):
    """Not http.server's: that one asks DNS who it is before it listens."""

    allow_reuse_address = True
    daemon_threads = True  # whatever a verb hangs on, the process can end
    block_on_close = False  # stop() waits, and not for ever
    request_queue_size = 128

    def __init__(
        self,
        where: tuple[str, int],
        routes: Mapping[str, Route],
        *,
        tls: ssl.SSLContext | None,
        most_body_bytes: int,
        silent_s: float,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        super().__init__(where, _Handler)
        self.routes = routes
        self.most_body_bytes = most_body_bytes
        self.silent_s = silent_s
        self.stopping = False
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()

    def stop(self, grace_s: float) -> None:
        """Take no connection any more, and wait for those that are open."""
        self.stopping = True
        self.shutdown()
        with self._changed:
            for connection in self._open:
                # What has arrived can still be read, and answered. Not SSLSocket's own method,
                # after which the answer would go out in the clear.
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, grace_s)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Shake hands in the connection's own thread: here a silent client would stop them all."""
        connection, client = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note that the connection is open."""
        with self._changed:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Note that the connection is closed."""
        super().shutdown_request(request)
        with self._changed:
            self._open.discard(request)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what ended a connection: nothing of ours where the client went, or speaks no TLS."""
        error = sys.exception()
        ours = not isinstance(error, OSError)
        _LOG.log(
            logging.ERROR if ours else logging.INFO,
            "connection from %s ended: %s",
            client_address[0],
            one_line(repr(error)),
            exc_info=ours,
        )


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one write
    # Of what http.server itself refuses.
    error_content_type = "text/plain"
    error_message_format = "%(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.silent_s)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _LOG.debug(format, *args)

    def _handle(self) -> None:
        """Read the whole request before it is judged: the connection is kept for the next one."""
        length = self._length()
        if isinstance(length, _Answer):
            self.close_connection = True  # the next request begins nobody knows where
            self._send(length)
            return
        body = self.rfile.read(length)
        if len(body) < length:  # the client went
            self.close_connection = True
            return
        self._send(self._answer(body))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _handle  # noqa: N815

    def _length(self) -> int | _Answer:
        """Of the body, in bytes, or why that body is not read."""
        if "Transfer-Encoding" in self.headers:
            return _Answer(HTTPStatus.LENGTH_REQUIRED, "send Content-Length, not chunks")
        told = self.headers.get("Content-Length", "0")
        if not re.fullmatch("[0-9]{1,18}", told):
            return _Answer(HTTPStatus.BAD_REQUEST, "Content-Length is no number of bytes")
        most = self.server.most_body_bytes
        if int(told) <= most:
            return int(told)
        # A client that is still sending when the connection is closed reads no answer.
        left = min(int(told), 2 * most)
        while left and (dropped := self.rfile.read(min(left, 2**16))):
            left -= len(dropped)
        return _Answer(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request of {int(told):,} bytes, at most {most:,} are read; "
            "set nodeCacheCapable: true, so that only names of nodes are sent",
        )

    def _answer(self, body: bytes) -> _Answer:
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path)
        if route is None:
            known = ", ".join(self.server.routes)
            return _Answer(HTTPStatus.NOT_FOUND, f"nothing is here; known are {known}")
        method = "GET" if self.command == "HEAD" else self.command
        if method != route.method:
            said = f"{path} takes {route.method}, not {self.command}"
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, said, allow=route.method)
        try:
            args = route.read(body)
        except InvalidRequestError as error:
            return _Answer(HTTPStatus.BAD_REQUEST, str(error))
        try:
            content = route.act(args)
            if isinstance(content, str):
                return _Answer(HTTPStatus.OK, content)
            return _Answer(HTTPStatus.OK, json.dumps(content, allow_nan=False), "application/json")
        except Exception as error:
            _LOG.exception("%s failed", path)
            said = one_line(f"{type(error).__name__}: {error}")
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, said)

    def _send(self, answer: _Answer) -> None:
        payload = answer.content.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(payload)))
        if answer.allow:
            self.send_header("Allow", answer.allow)
        if self.close_connection or self.server.stopping:
            self.send_header("Connection", "close")  # which closes it, too
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """For a server with this certificate, that asks clients for theirs where there is a CA.

    Raises
    ------
    ServiceError
        A file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password, or a key that has a passphrase would ask the terminal for it.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        raise ServiceError(
            f"--tls-cert {tls.certificate}, --tls-key {tls.key}: cannot be used ({error}); give a "
            "certificate and the key that goes with it in PEM, the key without a passphrase"
        ) from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:
            raise ServiceError(
                f"--client-ca {tls.client_ca}: cannot be used ({error}); give the authority's "
                "certificate, in PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
