"""Requests of one HTTP connection: from headers to a call, and from its outcome to a response."""

from __future__ import annotations

import ipaddress
import math
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import grpc

from presage.errors import ExpiredError, InvalidRequestError, OverloadedError, PresageError
from presage.serving.authentication.callers import has_token
from presage.serving.client.channel import SERVER_STATUS_KEY
from presage.serving.codec.request_limits import MAX_MESSAGE_BYTES
from presage.serving.http.connection import ConnectionEndedError
from presage.serving.http.memory_budget import BudgetExhaustedError, MemoryBudget
from presage.serving.http.request_body import BodyHandler, Header, HttpError, ParsedTooLargeError
from presage.serving.rest.http_call import HttpCall, Outcome
from presage.serving.rest.problem import CONTENT_TYPE, HTTP_STATUS, problem
from presage.serving.rest.routes import HEALTH_PATH, OPENAPI_PATH, query_as_json
from presage.serving.server.call import REQUEST_ID, RETRY_AFTER, request_id_of

if TYPE_CHECKING:
    from presage.serving.rest.rest_server import Endpoint, RestServer

JSON = "application/json"
TIMEOUT = "Grpc-Timeout"
_METADATA = ("authorization", "traceparent", "tracestate", REQUEST_ID)
_TIMEOUT = re.compile("([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNPARSED = {
    HTTPStatus.BAD_REQUEST: "the request line or a header is malformed",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the headers are too large or too many",
    HTTPStatus.NOT_IMPLEMENTED: "the HTTP method is not supported",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "the HTTP version is not supported; send HTTP/1.1",
}
_SAFE: tuple[Header, ...] = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))


class Response(NamedTuple):
    """Status, content and headers of a response."""

    status: HTTPStatus
    content: bytes
    content_type: str = JSON
    headers: tuple[Header, ...] = ()


class RestHandler(BodyHandler):
    """Handler of the requests of one connection."""

    server: RestServer

    def _handle(self) -> None:
        server = self.server
        self.unread = 0
        with server.active_request():
            try:
                try:
                    response = self._respond()
                except HttpError as error:
                    response = _rejection(error)
                if not self.close_connection:
                    with suppress(ConnectionEndedError):
                        self.skip_small_body()
                self._send(response)
            finally:
                self.state.on_evict = _do_nothing
                server.memory.release(self.state)
                server.anonymous_memory.release(self.state)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _handle  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject a request that http.server cannot parse."""
        status = HTTPStatus(code)
        self.unread, self.close_connection = 0, True
        # Not http.server's message, which repeats text of the request.
        detail = _UNPARSED.get(status, status.phrase)
        self._send(Response(status, problem(status, detail), CONTENT_TYPE))

    def _send(self, response: Response) -> None:
        self.server.metrics.count_http(response.status.value)
        headers = (*_SAFE, *response.headers)
        self.send_content(response.status, response.content, response.content_type, headers)

    def _respond(self) -> Response:
        """Answer a request.

        Raises
        ------
        HttpError
            The request is not a call of the API.
        """
        self.unread = self.body_length()
        if len(self.headers.get_all("Host", ())) > 1:
            self.close_connection = True
            raise HttpError(HTTPStatus.BAD_REQUEST, "there are several Host headers; send one")
        if self.server.checks_host:
            _check_host(self.headers.get("Host", ""))
        path, _, query = self.path.partition("?")
        verb = "GET" if self.command == "HEAD" else self.command
        if path in (HEALTH_PATH, OPENAPI_PATH):
            _check_verb(path, verb, ("GET",))
            is_health = path == HEALTH_PATH
            return self._health() if is_health else Response(HTTPStatus.OK, self.server.openapi)
        found = self.server.endpoints.get(path)
        if found is None:
            raise HttpError(
                HTTPStatus.NOT_FOUND, f"unknown path; {OPENAPI_PATH} has the paths of this server"
            )
        _check_verb(path, verb, tuple(found))
        return self._call(found[verb], query)

    def _health(self) -> Response:
        if self.server.is_serving():
            return Response(HTTPStatus.OK, b'{"status":"SERVING"}\n')
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, b'{"status":"NOT_SERVING"}\n')

    def _call(self, endpoint: Endpoint, query: str) -> Response:
        metadata = tuple(self._metadata())
        request_id = request_id_of(metadata)
        names = tuple(_common_names(self.connection)) if self.server.reads_names else ()
        call = HttpCall(
            self.server.loop,
            _peer(self.client_address),
            (*metadata, (REQUEST_ID, request_id)),
            names=names,
            timeout_s=_timeout_s(self.headers.get(TIMEOUT)),
            on_unread=self.state.stop_reading,
        )
        if endpoint.route.verb == "POST":
            self._check_content()
        self.state.on_evict = call.cancel
        self.state.wait_for_admission()
        call.begin(endpoint.answer)
        outcome, status = call.next_step(), None
        if outcome is None:
            self.state.is_authenticated |= bool(names) or has_token(metadata)
            try:
                status = self._supply_body(call, endpoint, query)
            except BaseException:
                call.cancel()
                raise
            outcome = call.next_step()
            assert outcome is not None
        self.state.check_open()
        if outcome.code is grpc.StatusCode.OK:
            return self._success(outcome.content, request_id)
        return _failure(outcome, request_id, status)

    def _metadata(self) -> Iterator[tuple[str, str]]:
        for name in _METADATA:
            for value in self.headers.get_all(name, ()):
                yield name, value

    def _check_content(self) -> None:
        if not self.unread:
            return
        if self.headers.get_content_type() != JSON or "Content-Type" not in self.headers:
            raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {JSON}")
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON without Content-Encoding")
        if self.unread > MAX_MESSAGE_BYTES:
            raise _too_large(f"a body of {self.unread:,} bytes")

    @property
    def _memory(self) -> MemoryBudget:
        is_authenticated = self.state.is_authenticated
        return self.server.memory if is_authenticated else self.server.anonymous_memory

    def _supply_body(self, call: HttpCall, endpoint: Endpoint, query: str) -> HTTPStatus | None:
        """Pass the JSON of a request to its call; return the status of a body without a call's."""
        try:
            if endpoint.route.verb == "GET":
                self.state.handle()
                call.supply(query_as_json(query, endpoint.route.descriptor.input_type))
            elif query:
                raise InvalidRequestError("this path takes JSON and no query; send it in the body")
            else:
                call.supply(self.read_within(self._memory, is_parsed=True))
        except ParsedTooLargeError:
            error = _too_large("the parsed body")
            call.reject(InvalidRequestError(str(error)))
            return error.status
        except BudgetExhaustedError:
            call.reject(
                OverloadedError(
                    "requests in flight use all memory allowed; retry, or send smaller requests",
                    retry_after_s=1.0,
                )
            )
        except ConnectionEndedError:
            self.close_connection = True
            self.state.check_open()
            call.reject(self._incomplete())
            return HTTPStatus.REQUEST_TIMEOUT
        except PresageError as error:
            call.reject(error)
        return None

    def _incomplete(self) -> PresageError:
        if time.monotonic() < self.state.deadline_s:
            return InvalidRequestError("the connection ended before the body was complete")
        return ExpiredError("the body did not arrive in time; send it faster, or a smaller one")

    def _success(self, content: bytes, request_id: str) -> Response:
        memory = self._memory
        memory.release(self.state)
        try:
            memory.reserve(self.state, len(content))
        except BudgetExhaustedError:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "responses in flight use all memory allowed; retry",
                ("Retry-After", "1"),
            ) from None
        return Response(HTTPStatus.OK, content, headers=((REQUEST_ID, request_id),))


def _failure(outcome: Outcome, request_id: str, status: HTTPStatus | None) -> Response:
    """Return the problem details of a call that failed.

    ``status`` replaces the status of a call whose body was not accepted.
    """
    is_of_body = outcome.code in (
        grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED
    )  # fmt: skip
    status = status if status and is_of_body else HTTP_STATUS[outcome.code]
    content = problem(status, outcome.details, code=outcome.code, request_id=request_id)
    headers = [(REQUEST_ID, request_id)]
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", 'Bearer realm="presage"'))
    for key, value in outcome.trailing:
        if key == RETRY_AFTER:
            headers.append(("Retry-After", str(math.ceil(int(value) / 1000))))
        else:
            assert key == SERVER_STATUS_KEY
    return Response(status, content, CONTENT_TYPE, tuple(headers))


def _rejection(error: HttpError) -> Response:
    return Response(error.status, problem(error.status, str(error)), CONTENT_TYPE, error.headers)


def _too_large(what: str) -> HttpError:
    return HttpError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"{what} exceeds the limit ({MAX_MESSAGE_BYTES:,} bytes of JSON); split the request",
    )


def _check_verb(path: str, verb: str, allowed: tuple[str, ...]) -> None:
    if verb not in allowed:
        named = [*allowed, *(["HEAD"] if "GET" in allowed else [])]
        raise HttpError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{path} accepts {' and '.join(named)} only",
            ("Allow", ", ".join(named)),
        )


def _check_host(host: str) -> None:
    name = host.rpartition(":")[0] if re.search(r":[0-9]*\Z", host) else host
    try:
        is_local = name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise HttpError(
            HTTPStatus.MISDIRECTED_REQUEST,
            "a server without tokens answers requests to localhost and loopback addresses only; "
            "send such a Host header, or start the server with --tokens",
        )


def _timeout_s(value: str | None) -> float:
    """Return the seconds of a Grpc-Timeout header; infinite without one."""
    if value is None:
        return math.inf
    found = _TIMEOUT.fullmatch(value.strip())
    if found is None:
        raise HttpError(
            HTTPStatus.BAD_REQUEST,
            f"{TIMEOUT} is not a number of at most 8 digits and a unit (H, M, S, m, u, n); send "
            "for example 500m for 500 milliseconds",
        )
    return int(found[1]) * _UNIT_S[found[2]]


def _peer(address: Any) -> str:
    """Return an address in gRPC's notation."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _common_names(connection: Any) -> Iterator[bytes]:
    if not isinstance(connection, ssl.SSLSocket):
        return
    certificate: Any = connection.getpeercert() or {}
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                yield str(value).encode()


def _do_nothing() -> None:
    pass
