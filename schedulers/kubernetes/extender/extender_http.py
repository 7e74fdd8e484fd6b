"""HTTP/1.1 server for JSON: it authenticates before it reads a body, and bounds memory."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Mapping
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
    Authenticator,
)
from presage.serving.authentication.authentication_failures import AuthenticationFailures
from presage.serving.authentication.callers import Caller
from presage.serving.http.connection import HttpLimits
from presage.serving.http.http_server import BoundedServer
from presage.serving.http.memory_budget import BudgetExhaustedError, MemoryBudget
from presage.serving.http.request_body import (
    SMALL_BYTES,
    BodyHandler,
    HttpError,
    ParsedTooLargeError,
)
from presage.serving.server.log import log

_LOG = logging.getLogger(__name__)
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on request bodies, and on the memory for bodies and parsed requests.

    Attributes
    ----------
    body_mib : int
        Body of an authenticated request. A node is 10 to 30 KiB of JSON, mostly names of its
        images, and kube-scheduler sends the nodes that passed its own filters: by default 500 of
        5,000.
    anonymous_body_mib : int
        Body of an anonymous request: the names of 10,000 nodes and a pod take less than 2.
    memory_mib, anonymous_memory_mib : int
        Memory of all requests together.
    """

    body_mib: int = 32
    anonymous_body_mib: int = 4
    memory_mib: int = 512
    anonymous_memory_mib: int = 64


class Route(NamedTuple):
    """Handling of a path: ``handle`` is called with the parsed body.

    ``parse`` raises InvalidRequestError (400). The result of ``handle`` is sent as text if it is a
    str, and else as JSON; any exception is a server error (500).
    """

    method: str
    parse: Callable[[bytes], Any]
    handle: Callable[[Any], Any]
    access: Access = Access.READ


class _Response(NamedTuple):
    status: HTTPStatus
    content: str
    content_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()


class HttpServer(BoundedServer):
    """Server of routes, for callers that ``authenticator`` accepts."""

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        authenticator: Authenticator,
        *,
        tls: ssl.SSLContext | None,
        limits: HttpLimits,
        body_limits: BodyLimits,
    ) -> None:
        super().__init__(address, _Handler, limits=limits, tls=tls)
        self.routes = routes
        self.authenticator = authenticator
        self.failures = AuthenticationFailures()
        self.body_bytes = body_limits.body_mib * _MIB
        self.anonymous_body_bytes = min(body_limits.anonymous_body_mib * _MIB, self.body_bytes)
        self.memory = MemoryBudget(body_limits.memory_mib * _MIB)
        self.anonymous_memory = MemoryBudget(body_limits.anonymous_memory_mib * _MIB)


class _Handler(BodyHandler):
    server: HttpServer

    def _handle(self) -> None:
        try:
            self._handle_request()
        finally:
            self.server.memory.release(self.state)
            self.server.anonymous_memory.release(self.state)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _handle  # noqa: N815

    def _handle_request(self) -> None:
        self.unread = 0
        try:
            response = self._response()
        except HttpError as error:
            response = _Response(error.status, str(error), headers=error.headers)
            self.skip_small_body()
        content = response.content.encode()
        self.send_content(response.status, content, response.content_type, response.headers)

    def _response(self) -> _Response:
        self.unread = length = self.body_length()
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path)
        caller = self._caller(Access.READ if route is None else route.access)
        if route is None:
            known = ", ".join(self.server.routes)
            raise HttpError(HTTPStatus.NOT_FOUND, f"unknown path; known are {known}")
        self._check_method(path, route.method)
        body = self._body(length, SMALL_BYTES if route.method == "GET" else self._max_body_bytes())
        try:
            args = route.parse(body)
        except InvalidRequestError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        del body
        if route.access is Access.BIND and caller is not None:
            log(logging.INFO, "request", path=path, caller=caller.name, peer=self.state.peer)
        return self._handle_args(path, route, args)

    def _handle_args(self, path: str, route: Route, args: Any) -> _Response:
        try:
            content = route.handle(args)
            if isinstance(content, str):
                return _Response(HTTPStatus.OK, content)
            return _Response(
                HTTPStatus.OK, json.dumps(content, allow_nan=False), "application/json"
            )
        except Exception as error:
            _LOG.exception("%s failed", path)
            message = one_line(f"{type(error).__name__}: {error}")
            return _Response(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    def _caller(self, access: Access) -> Caller:
        """Return the caller from the headers; each rejection of a peer is delayed longer."""
        if access is Access.OPEN:
            return ANONYMOUS
        authenticator = self.server.authenticator
        try:
            authorization = self.headers.get("Authorization", "")
            caller = authenticator.authenticate(authorization, self.connection)
            self.state.is_authenticated = authenticator.is_enabled
            if access is Access.BIND:
                self._check_can_bind(caller)
        except UnauthenticatedError as error:
            self._fail_login(str(error))
            challenge = ("WWW-Authenticate", 'Bearer realm="presage"')
            raise HttpError(HTTPStatus.UNAUTHORIZED, str(error), challenge) from None
        except ForbiddenError as error:
            self._fail_login(str(error))
            raise HttpError(HTTPStatus.FORBIDDEN, str(error)) from None
        return caller

    def _check_can_bind(self, caller: Caller) -> None:
        if not self.server.authenticator.is_enabled:
            raise UnauthenticatedError(
                "bind and preempt need authentication, which is disabled; start the extender with "
                "--client-ca or --tokens"
            )
        caller.require_role(BIND)

    def _fail_login(self, reason: str) -> None:
        self.state.pause(self.server.failures.record_failure(self.state.peer, reason=reason))

    def _check_method(self, path: str, allowed: str) -> None:
        method = "GET" if self.command == "HEAD" else self.command
        if method != allowed:
            raise HttpError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{path} accepts {allowed}, not {self.command}",
                ("Allow", allowed),
            )

    def _max_body_bytes(self) -> int:
        server = self.server
        return server.body_bytes if self.state.is_authenticated else server.anonymous_body_bytes

    def _body(self, length: int, limit: int) -> bytes:
        """Read the body, after reserving memory for it and for its parsed form."""
        if length > limit:
            raise _too_large(f"a request of {length:,} bytes exceeds the limit of {limit:,}")
        server = self.server
        memory = server.memory if self.state.is_authenticated else server.anonymous_memory
        try:
            return self.read_within(memory, is_parsed=True)
        except ParsedTooLargeError:
            raise _too_large(
                f"the parsed request exceeds the limit of {memory.max_bytes:,} bytes"
            ) from None
        except BudgetExhaustedError:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"requests in flight use all of the {memory.max_bytes:,} bytes allowed; retry",
                ("Retry-After", "1"),
            ) from None


def _too_large(message: str) -> HttpError:
    return HttpError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"{message}; set nodeCacheCapable: true, so that only names of nodes are sent",
    )
