"""JSON over HTTP/1.1: callers are authenticated before a body is read, bodies within a budget."""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from presage.errors import (
    ForbiddenError,
    InvalidRequestError,
    UnauthenticatedError,
    one_line,
)
from presage.schedulers.kubernetes.extender.extender_access import (
    ANONYMOUS,
    BIND,
    Access,
    Credentials,
)
from presage.serving.authentication.authentication_failures import AuthenticationFailures
from presage.serving.authentication.callers import Caller
from presage.serving.http.connection import ConnectionEndedError, HttpLimits
from presage.serving.http.http_server import BoundedHandler, BoundedServer
from presage.serving.http.memory_budget import BudgetExhaustedError, MemoryBudget
from presage.serving.server.log import log

_LOG = logging.getLogger(__name__)
_MIB = 2**20
_SMALL_BYTES = 64 * 1024  # a refused body that is read, so that its connection is kept
_LINGER_S = 2.0


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds on bodies, and on the memory that they take with all that is made of them.

    Attributes
    ----------
    body_mib : int
        Of one request with credentials. A node is 10 to 30 KiB of JSON, most of it the names of
        its images, and kube-scheduler sends those that passed its own filters: by default 500 of
        5,000.
    anonymous_body_mib : int
        Of one without: names of 10,000 nodes and a pod take less than 2.
    memory_mib, anonymous_memory_mib : int
        Of all requests together.
    """

    body_mib: int = 32
    anonymous_body_mib: int = 4
    memory_mib: int = 512
    anonymous_memory_mib: int = 64


class Route(NamedTuple):
    """How a path is answered: ``act`` is called with what ``read`` returns for the body.

    ``read`` raises InvalidRequestError (400). What ``act`` returns is sent as JSON, or as it is
    where it is text; whatever it raises is an error of the server (500).
    """

    method: str
    read: Callable[[bytes], Any]
    act: Callable[[Any], Any]
    access: Access = Access.READ


class _Answer(NamedTuple):
    status: HTTPStatus
    content: str
    content_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, said: str, *headers: tuple[str, str]) -> None:
        super().__init__(said)
        self.answer = _Answer(status, said, headers=headers)


class HttpServer(BoundedServer):
    """Serves routes to callers that ``credentials`` lets in."""

    def __init__(
        self,
        where: tuple[str, int],
        routes: Mapping[str, Route],
        credentials: Credentials,
        *,
        tls: ssl.SSLContext | None,
        limits: HttpLimits,
        bodies: BodyLimits,
    ) -> None:
        super().__init__(where, _Handler, limits=limits, tls=tls)
        self.routes = routes
        self.credentials = credentials
        self.failures = AuthenticationFailures()
        self.body_bytes = bodies.body_mib * _MIB
        self.anonymous_body_bytes = min(bodies.anonymous_body_mib * _MIB, self.body_bytes)
        self.memory = MemoryBudget(bodies.memory_mib * _MIB)
        self.anonymous_memory = MemoryBudget(bodies.anonymous_memory_mib * _MIB)


class _Handler(BoundedHandler):
    server: HttpServer
    protocol_version = "HTTP/1.1"

    def handle_expect_100(self) -> bool:
        """Say "continue" only once it is known that the body is read."""
        return True

    def _handle(self) -> None:
        try:
            self._handle_request()
        finally:
            self.server.memory.release(self.state)
            self.server.anonymous_memory.release(self.state)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _handle  # noqa: N815

    def _handle_request(self) -> None:
        self._unread = 0
        try:
            answer = self._answer()
        except _RefusedError as refused:
            answer = refused.answer
            if 0 < self._unread <= _SMALL_BYTES and not self._waits_to_send():
                self._read(self._unread)
        self.close_connection |= self._unread > 0
        self._send(answer)
        if self._unread:
            self._discard()

    def _answer(self) -> _Answer:
        self._unread = length = self._length()
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path)
        caller = self._caller(Access.READ if route is None else route.access)
        if route is None:
            known = ", ".join(self.server.routes)
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"nothing is here; known are {known}")
        self._check_method(path, route.method)
        body = self._body(length, _SMALL_BYTES if route.method == "GET" else self._most_bytes())
        try:
            args = route.read(body)
        except InvalidRequestError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
        del body
        if route.access is Access.BIND and caller is not None:
            log(logging.INFO, "request", path=path, caller=caller.name, peer=self.state.peer)
        return self._act(path, route, args)

    def _act(self, path: str, route: Route, args: Any) -> _Answer:
        try:
            content = route.act(args)
            if isinstance(content, str):
                return _Answer(HTTPStatus.OK, content)
            return _Answer(HTTPStatus.OK, json.dumps(content, allow_nan=False), "application/json")
        except Exception as error:
            _LOG.exception("%s failed", path)
            said = one_line(f"{type(error).__name__}: {error}")
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, said)

    def _caller(self, access: Access) -> Caller:
        """The caller, from the headers alone. Each refusal of a peer is sent later."""
        if access is Access.OPEN:
            return ANONYMOUS
        credentials = self.server.credentials
        try:
            sent = self.headers.get("Authorization", "")
            caller = credentials.caller(sent, self.connection)
            self.state.is_authenticated = credentials.are_checked
            if access is Access.BIND:
                self._check_may_bind(caller)
        except UnauthenticatedError as error:
            self._fail_login(str(error))
            challenge = ("WWW-Authenticate", 'Bearer realm="presage"')
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, str(error), challenge) from None
        except ForbiddenError as error:
            self._fail_login(str(error))
            raise _RefusedError(HTTPStatus.FORBIDDEN, str(error)) from None
        return caller

    def _check_may_bind(self, caller: Caller) -> None:
        if not self.server.credentials.are_checked:
            raise UnauthenticatedError(
                "without credentials pods are only filtered and prioritized; start the extender "
                "with --client-ca or --tokens to bind and preempt"
            )
        caller.require_role(BIND)

    def _fail_login(self, reason: str) -> None:
        self.state.pause(self.server.failures.record_failure(self.state.peer, reason=reason))

    def _check_method(self, path: str, allowed: str) -> None:
        method = "GET" if self.command == "HEAD" else self.command
        if method != allowed:
            raise _RefusedError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{path} takes {allowed}, not {self.command}",
                ("Allow", allowed),
            )

    def _length(self) -> int:
        """Bytes of the body, as the headers say."""
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True  # where the next request begins is not known
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "send Content-Length, not chunks")
        said = self.headers.get_all("Content-Length", ["0"])
        if len(said) > 1 or not re.fullmatch("[0-9]{1,18}", said[0]):
            self.close_connection = True
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is no number of bytes")
        return int(said[0])

    def _most_bytes(self) -> int:
        server = self.server
        return server.body_bytes if self.state.is_authenticated else server.anonymous_body_bytes

    def _body(self, length: int, most: int) -> bytes:
        """The body, once there is memory for it and for what is read from it."""
        if length > most:
            raise _too_large(f"a request of {length:,} bytes, at most {most:,} are read")
        server = self.server
        memory = server.memory if self.state.is_authenticated else server.anonymous_memory
        if length and self._waits_to_send():
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
            self.wfile.flush()
        try:
            body = self._read(length, lambda count: memory.reserve(self.state, count))
            needed = parsed_bytes(body)
            if length + needed > memory.max_bytes:
                raise _too_large(f"a request of too many values for {memory.max_bytes:,} bytes")
            memory.reserve(self.state, needed)
        except BudgetExhaustedError:
            raise _RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"requests hold all of the {memory.max_bytes:,} bytes they may; ask again",
                ("Retry-After", "1"),
            ) from None
        return body

    def _waits_to_send(self) -> bool:
        return self.headers.get("Expect", "").lower() == "100-continue"

    def _read(self, length: int, on_bytes: Callable[[int], object] = lambda count: None) -> bytes:
        self.state.read_body()
        self.state.on_body_bytes = on_bytes
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionEndedError(f"{self.state.peer}: closed within a body")
        self._unread = 0
        self.state.handle()
        return body

    def _discard(self) -> None:
        """Read on for a moment: a client still sending when it is closed would read no answer."""
        self.state.linger(_LINGER_S)
        with suppress(OSError):
            while self.rfile.read1(_SMALL_BYTES):
                pass

    def _send(self, answer: _Answer) -> None:
        payload = answer.content.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(payload)))
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.close_connection or self.server.stopping:
            self.send_header("Connection", "close")  # which closes it, too
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)
        self.wfile.flush()


def parsed_bytes(body: bytes) -> int:
    """Upper bound of the memory that reading a JSON body, and answering it, takes besides it.

    Measured with CPython 3.11, for bodies of nothing but one kind of value: up to 24 bytes for each
    byte of `{"a":1},`, 30 for `[[]],`. Text with a wide character takes 4 bytes a character.
    """
    is_wide = not body.isascii() or b"\\u" in body
    text = (8 if is_wide else 2) * len(body)
    values = 70 * (body.count(b",") + body.count(b"[")) + 100 * body.count(b":")
    return text + 250 * body.count(b"{") + values


def _too_large(said: str) -> _RefusedError:
    return _RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"{said}; set nodeCacheCapable: true, so that only names of nodes are sent",
    )
