"""Life cycle of a gRPC call: authentication, admission, deadline, status and accounting.

Methods map bytes to bytes and do not depend on gRPC. One table maps their errors to gRPC statuses.
"""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import grpc

from presage.errors import (
    ConfigError,
    ElasticError,
    ExpiredError,
    ForbiddenError,
    ForeignReleaseError,
    GraphError,
    ImpossibleActionError,
    InvalidJobError,
    InvalidRequestError,
    InvalidTensorError,
    JournalError,
    MissingMethodError,
    NotYetError,
    OutcomeLogError,
    OverloadedError,
    PresageError,
    ProfilingError,
    RefusedAgentError,
    RefusedReleaseError,
    RegistryError,
    ReleaseError,
    ServiceError,
    StaleSchemaError,
    TableError,
    TaskFolderError,
    TrainingError,
    UnauthenticatedError,
    UnknownDeviceError,
    UnknownJobError,
    UnknownModelError,
    UnsureJournalError,
    without_frames,
)
from presage.serving.admission.backlog import Backlog
from presage.serving.admission.connection_limits import Connections
from presage.serving.admission.limits import RateLimit
from presage.serving.admission.malloc import MemoryTrimmer
from presage.serving.admission.unfinished_requests import UnfinishedRequests
from presage.serving.authentication.authentication_failures import AuthenticationFailures
from presage.serving.authentication.callers import ROLES, Caller, Tokens, has_token
from presage.serving.client.channel import SERVER_STATUS_KEY
from presage.serving.server.access_log import AccessLog, EndedCall
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics

Code = grpc.StatusCode

# INVALID_ARGUMENT and NOT_FOUND: the caller can fix the request. UNAVAILABLE: retry, or use another
# replica. INTERNAL: the operator of this server has to act.
STATUS: dict[type[PresageError], grpc.StatusCode] = {
    InvalidJobError: Code.INVALID_ARGUMENT,
    InvalidRequestError: Code.INVALID_ARGUMENT,
    InvalidTensorError: Code.INVALID_ARGUMENT,
    GraphError: Code.INVALID_ARGUMENT,
    UnknownDeviceError: Code.NOT_FOUND,
    UnknownModelError: Code.NOT_FOUND,
    UnknownJobError: Code.NOT_FOUND,
    StaleSchemaError: Code.FAILED_PRECONDITION,
    RefusedReleaseError: Code.FAILED_PRECONDITION,
    NotYetError: Code.FAILED_PRECONDITION,
    RefusedAgentError: Code.ALREADY_EXISTS,
    ExpiredError: Code.DEADLINE_EXCEEDED,
    OverloadedError: Code.RESOURCE_EXHAUSTED,
    UnauthenticatedError: Code.UNAUTHENTICATED,
    ForbiddenError: Code.PERMISSION_DENIED,
    ConfigError: Code.INTERNAL,
    ReleaseError: Code.INTERNAL,
    ForeignReleaseError: Code.INTERNAL,
    TableError: Code.INTERNAL,
    ProfilingError: Code.INTERNAL,
    TrainingError: Code.INTERNAL,
    RegistryError: Code.UNAVAILABLE,
    ServiceError: Code.UNAVAILABLE,
    MissingMethodError: Code.UNAVAILABLE,
    OutcomeLogError: Code.UNAVAILABLE,
    JournalError: Code.UNAVAILABLE,
    UnsureJournalError: Code.UNAVAILABLE,
    ImpossibleActionError: Code.FAILED_PRECONDITION,
    ElasticError: Code.FAILED_PRECONDITION,
    TaskFolderError: Code.INTERNAL,
}
# Metadata that tells gRPC's own retries when to retry, in milliseconds (gRFC A6).
RETRY_AFTER = "grpc-retry-pushback-ms"
REQUEST_ID = "x-request-id"

_REJECTIONS = {
    OverloadedError: "overloaded",
    ExpiredError: "expired",
    UnauthenticatedError: "unauthenticated",
    ForbiddenError: "forbidden",
}
# gRPC encodes each byte of a message in up to three bytes of metadata, and a client accepts 8 KiB
# of metadata: for larger ones it reports RESOURCE_EXHAUSTED instead of the status.
_MAX_DETAILS_BYTES = 2048
_LARGE_BYTES = 16 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ALL_ROLES = frozenset(ROLES)
_NO_ROLES: frozenset[str] = frozenset()


@dataclass(slots=True)
class Call:
    """Call that is being answered.

    Attributes
    ----------
    method : str
        Name of the method.
    request_id : str
        Id from the caller's metadata, or a new one.
    caller : Caller
        Named by its host and without roles until it is authenticated.
    deadline_s : float
        By ``time.monotonic()``; infinite without a deadline.
    rows : int
        Number of requested rows; 0 until it is known.
    """

    method: str
    request_id: str
    caller: Caller
    deadline_s: float = math.inf
    rows: int = 0

    def check_deadline(self) -> None:
        """Raise ExpiredError if the deadline of the call has passed."""
        if time.monotonic() >= self.deadline_s:
            raise ExpiredError(
                "the deadline passed before the request was processed; send smaller requests, "
                "raise the deadline, or use another replica"
            )


Metadata = Sequence[tuple[str, str | bytes]]
Unary = Callable[[bytes, Call], bytes | Awaitable[bytes]]
Stream = Callable[[AsyncIterator[bytes], Call], AsyncGenerator[bytes, None]]
Span = Callable[[str, Any], Any]


class Method(NamedTuple):
    """Unary method of a service, and the role that its calls require; None for none."""

    role: str | None
    answer: Unary


_NO_SPAN = nullcontext()


def no_span(_method: str, _context: Any) -> Any:
    """Return a context manager that does nothing, for calls that are not traced."""
    return _NO_SPAN


@asynccontextmanager
async def errors_as_statuses(context: Any) -> AsyncIterator[None]:
    """End the call with the status of a PresageError that the block raises."""
    try:
        yield
    except PresageError as error:
        without_frames(error)
        await context.abort(status_of(error), _details(error), _retry_hint(error))


def status_of(error: PresageError) -> grpc.StatusCode:
    """Return the gRPC status of an error; INTERNAL if the table does not name it."""
    return STATUS.get(type(error), Code.INTERNAL)


@dataclass
class Calls:
    """Admission, authentication and accounting that all calls of a server share.

    Attributes
    ----------
    tokens : callable or None
        Returns the valid tokens; None on a server without tokens.
    anonymous_roles : frozenset of str
        Roles of calls without a token or certificate; if empty, every call needs one.
    rate : RateLimit or None
        Limit on the rows per second of one client.
    backlog : Backlog or None
        Limit on waiting calls.
    access_log : AccessLog or None
        Log of all calls.
    certificates : bool
        Whether clients are named by their certificates.
    span : callable
        Returns the context manager that traces a call, given its method and gRPC context.
    trimmer : MemoryTrimmer or None
        Returns the memory of large requests to the kernel.
    connections : Connections or None
        Records the connections on which calls are admitted.
    unfinished : UnfinishedRequests
        Requests that have not arrived completely.
    in_flight : int
        Calls that are being answered and open streams.
    is_closing : bool
        Whether new calls are rejected because the server stops.
    """

    metrics: Metrics
    tokens: Callable[[], Tokens] | None = None
    anonymous_roles: frozenset[str] = _NO_ROLES
    rate: RateLimit | None = None
    backlog: Backlog | None = None
    access_log: AccessLog | None = None
    certificates: bool = False
    span: Span = field(default=no_span)
    trimmer: MemoryTrimmer | None = None
    connections: Connections | None = None
    in_flight: int = 0
    is_closing: bool = False
    unfinished: UnfinishedRequests = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = UnfinishedRequests(self._on_unread)
        self._failures = AuthenticationFailures()

    def unary(
        self, name: str, role: str | None, method: Unary
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return a handler of serialized requests.

        Parameters
        ----------
        role : str or None
            Role that the call requires; None for no authentication.
        """

        # gRPC treats the request as a stream of one message, so that a caller can be authenticated
        # and rejected before the message is read.
        async def answer(_requests: object, context: Any) -> bytes:
            begin_s, code, request = time.monotonic(), Code.OK, b""
            metadata = context.invocation_metadata() or ()
            call = Call(name, request_id_of(metadata), _anonymous_caller(context.peer()))
            try:
                await self._admit(call, role, context, metadata, begin_s)
                is_authenticated = role is not None and not call.caller.is_anonymous
                request = (
                    await self.unfinished.receive(context.read, is_authenticated=is_authenticated)
                    or b""
                )
                if self.backlog is not None:
                    self.backlog.mark_received()
                call.check_deadline()
                self.in_flight += 1
                try:
                    with self.span(name, context):
                        response = method(request, call)
                        return response if isinstance(response, bytes) else await response
                finally:
                    self.in_flight -= 1
            except BaseException as error:
                code = _code_of(error, call)
                await self._abort(context, code, error, call)
                raise
            finally:
                self._end(call, code, begin_s, len(request))
                del request  # gRPC keeps the error of a rejected call, and with it this frame

        return grpc.stream_unary_rpc_method_handler(answer)

    def stream(self, name: str, role: str, method: Stream) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return a handler of a stream of serialized requests; one response each, in order."""

        # Not a generator: gRPC would leave a cancelled one to the garbage collector.
        async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
            begin_s, code = time.monotonic(), Code.OK
            metadata = context.invocation_metadata() or ()
            call = Call(name, request_id_of(metadata), _anonymous_caller(context.peer()))
            self.in_flight += 1
            try:
                # Before the call is admitted: tokens that change in between are checked again.
                checked = None if self.tokens is None else self.tokens()
                await self._admit(call, role, context, metadata, begin_s)
                if call.caller.is_anonymous:
                    requests = self.unfinished.messages(context.read)

                def check() -> None:
                    nonlocal checked
                    checked = self._check_unchanged(call, role, context, metadata, checked)

                with self.span(name, context):
                    async with aclosing(method(_Checked(requests, check), call)) as responses:
                        async for response in responses:
                            check()
                            await context.write(response)
            except BaseException as error:
                code = _code_of(error, call)
                await self._abort(context, code, error, call)
                raise
            finally:
                self.in_flight -= 1
                self._end(call, code, begin_s, 0)

        return grpc.stream_stream_rpc_method_handler(answer)

    def admit_rows(self, call: Call, rows: int) -> None:
        """Count the rows of a call; raise OverloadedError above its caller's rate limit."""
        call.rows += rows
        if self.rate is not None:
            self.rate.consume(call.caller.name, rows)

    def close(self) -> None:
        """Cancel the timers; call after the last call has ended."""
        if self.trimmer is not None:
            self.trimmer.close()

    async def _admit(
        self, call: Call, role: str | None, context: Any, metadata: Metadata, begin_s: float
    ) -> None:
        """Set the caller and the deadline of a call; reject it without the role or when late."""
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline_s = begin_s + left_s
        if self.is_closing:
            raise ServiceError(
                "this server is shutting down; use another replica, or retry in a second",
                retry_after_s=1.0,  # by then it has ended; calls at its very end are cancelled
            )
        if role is not None:
            if self.backlog is not None:
                self.backlog.check(begin_s)
            try:
                call.caller = self._authenticate(call, role, context, metadata)
            except UnauthenticatedError:
                await self._failures.delay(
                    call.caller.name, method=call.method, request_id=call.request_id
                )
                raise
            call.caller.require_role(role)
            if self.connections is not None:
                self.connections.mark_used(context.peer())
        call.check_deadline()

    def _authenticate(self, call: Call, role: str, context: Any, metadata: Metadata) -> Caller:
        """Return the caller of the token or certificate, or an anonymous caller.

        Raises
        ------
        UnauthenticatedError
            The token is not valid, or there is none and the role requires one.
        """
        is_anonymous = self.anonymous_roles and not has_token(metadata)
        if self.tokens is not None and not is_anonymous:
            return self.tokens().authenticate(metadata)
        names = context.auth_context().get("x509_common_name") if self.certificates else None
        if names:
            return Caller(str(names[0].decode(errors="replace")), _ALL_ROLES)
        if role not in self.anonymous_roles:
            raise UnauthenticatedError(
                f"this call requires the role {role!r}, which calls without a token do not have; "
                "send the metadata `authorization: Bearer TOKEN`"
            )
        return replace(call.caller, roles=self.anonymous_roles, is_anonymous=True)

    def _check_unchanged(
        self, call: Call, role: str, context: Any, metadata: Metadata, checked: Tokens | None
    ) -> Tokens | None:
        """Check that the credentials of an open stream are still valid; return the valid tokens.

        ``checked`` are the tokens at the last check. While they are still valid, the token of the
        stream can only have expired. Without tokens, the caller cannot change.

        Raises
        ------
        UnauthenticatedError
            The token has expired or was revoked, or its roles or limits have changed.
        """
        if self.tokens is None:
            return None
        tokens = self.tokens()
        if tokens is checked and not tokens.has_expired(call.caller):
            return tokens
        if self._authenticate(call, role, context, metadata) != call.caller:
            raise UnauthenticatedError(
                f"the roles or limits of {call.caller.name!r} have changed; reopen the stream"
            )
        return tokens

    async def _abort(self, context: Any, code: Code, error: BaseException, call: Call) -> None:
        """End a call with its status; do nothing if the call was cancelled.

        Internal errors are logged and not sent to the client. gRPC keeps the error of an aborted
        call, and its context, until the garbage collector runs; so frames are removed.
        """
        fields: dict[str, Any] = {"method": call.method, "request_id": call.request_id}
        if isinstance(error, PresageError):
            if reason := _REJECTIONS.get(type(error)):
                self.metrics.rejections.labels(reason).inc()
            if code is Code.INTERNAL:
                log(logging.ERROR, "failed", error=str(error), **fields)
            without_frames(error)
            trailing = ((SERVER_STATUS_KEY, "1"), *_retry_hint(error))
            await context.abort(code, _details(error), trailing)
        elif code is Code.INTERNAL:
            log(logging.ERROR, "defect", traceback=True, **fields)
            without_frames(error)
            await context.abort(
                code, f"internal error of the server; see request {call.request_id} in its log"
            )

    def _on_unread(self) -> None:
        if self.trimmer is not None:
            self.trimmer.trim_soon()

    def _end(self, call: Call, code: Code, begin_s: float, size: int) -> None:
        seconds = time.monotonic() - begin_s
        self.metrics.count_call(call.method, code.name, seconds, call.rows)
        if self.trimmer is not None and size > _LARGE_BYTES:
            self.trimmer.trim_when_idle()
        if self.access_log is not None:
            self.access_log.record(EndedCall(
                time.time(), call.method, code.name, seconds, call.rows, size, call.caller.name,
                call.request_id,
            ))  # fmt: skip


class _Checked:
    """Asynchronous iterator of a stream's requests that checks the caller before each.

    It is no generator: the generator of a cancelled call would be left to the garbage collector.
    """

    def __init__(self, requests: AsyncIterator[bytes], check: Callable[[], None]) -> None:
        self._requests, self._check = requests, check

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        request = await anext(self._requests)
        self._check()
        return request


@lru_cache(maxsize=1024)
def _anonymous_caller(peer: str) -> Caller:
    """Return a caller without roles for a gRPC peer.

    Peers look like "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711" or "unix:".
    """
    return Caller(unquote(peer.partition(":")[2].rpartition(":")[0]) or peer, _NO_ROLES)


def _code_of(error: BaseException, call: Call) -> Code:
    """Return the status of a call that ends with this exception."""
    if isinstance(error, PresageError):
        return status_of(error)
    # gRPC's own errors, like a cancellation, mean that the call has ended already.
    if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
        return Code.INTERNAL
    has_expired = time.monotonic() >= call.deadline_s
    return Code.DEADLINE_EXCEEDED if has_expired else Code.CANCELLED


def _details(error: PresageError) -> str:
    return str(error).encode(errors="replace")[:_MAX_DETAILS_BYTES].decode(errors="ignore")


def _retry_hint(error: PresageError) -> tuple[tuple[str, str], ...]:
    if not isinstance(error, OverloadedError | ServiceError) or error.retry_after_s is None:
        return ()
    return ((RETRY_AFTER, str(max(1, math.ceil(1000 * error.retry_after_s)))),)


def request_id_of(metadata: Metadata) -> str:
    """Return the valid request id in the metadata, or a new one."""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return f"{random.getrandbits(64):016x}"
