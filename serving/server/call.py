"""A call from its arrival to its end: who it is from, whether there is time, what it ended with.

Methods take and give bytes and know nothing of gRPC; one table maps their errors to its statuses.
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
from typing import Any, Self
from urllib.parse import unquote

import grpc

from presage.errors import (
    ConfigError,
    ExpiredError,
    ForbiddenError,
    ForeignReleaseError,
    GraphError,
    ImpossibleActionError,
    InvalidJobError,
    InvalidRequestError,
    InvalidTensorError,
    JournalError,
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
from presage.serving.client.channel import SAID
from presage.serving.server.access_log import AccessLog, EndedCall
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics

Code = grpc.StatusCode

# INVALID_ARGUMENT and NOT_FOUND: the caller can mend it. UNAVAILABLE: ask again, or elsewhere.
# INTERNAL: whoever runs this server has to act.
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
    OutcomeLogError: Code.UNAVAILABLE,
    JournalError: Code.UNAVAILABLE,
    UnsureJournalError: Code.UNAVAILABLE,
    ImpossibleActionError: Code.FAILED_PRECONDITION,
    TaskFolderError: Code.INTERNAL,
}
# The metadata by which gRPC itself is told when to try again (gRFC A6), in milliseconds.
RETRY_AFTER = "grpc-retry-pushback-ms"
REQUEST_ID = "x-request-id"

_REJECTIONS = {
    OverloadedError: "overloaded",
    ExpiredError: "expired",
    UnauthenticatedError: "unauthenticated",
    ForbiddenError: "forbidden",
}
# Of a message, which gRPC writes in up to three bytes each into metadata of which a client takes
# 8 KiB: of more it would say RESOURCE_EXHAUSTED, whatever the status was.
_MOST_DETAILS_BYTES = 2048
_LARGE_BYTES = 16 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ALL_ROLES = frozenset(ROLES)
_NO_ROLES: frozenset[str] = frozenset()


@dataclass(slots=True)
class Call:
    """A call that is being answered.

    Attributes
    ----------
    request_id : str
        The caller's own, or a new one.
    caller : Caller
        Named by its host and without a role until it is authenticated.
    deadline_s : float
        By ``time.monotonic()``; infinite where the caller waits for ever.
    rows : int
        What it asks for, once that is known.
    """

    method: str
    request_id: str
    caller: Caller
    deadline_s: float = math.inf
    rows: int = 0

    def check_time(self) -> None:
        """Refuse to work for a caller that has stopped to wait."""
        if time.monotonic() >= self.deadline_s:
            raise ExpiredError(
                "the deadline passed before the work was begun; ask for less at once, wait "
                "longer, or ask another replica"
            )


Metadata = Sequence[tuple[str, str | bytes]]
Unary = Callable[[bytes, Call], bytes | Awaitable[bytes]]
Stream = Callable[[AsyncIterator[bytes], Call], AsyncGenerator[bytes, None]]
Span = Callable[[str, Any], Any]


_NO_SPAN = nullcontext()


def no_span(_method: str, _context: Any) -> Any:
    """Calls that are not traced."""
    return _NO_SPAN


@asynccontextmanager
async def errors_as_statuses(context: Any) -> AsyncIterator[None]:
    """End the call with an error's status where there is one."""
    try:
        yield
    except PresageError as error:
        without_frames(error)
        await context.abort(status_of(error), _details(error), _retry_hint(error))


def status_of(error: PresageError) -> grpc.StatusCode:
    """The status that an error of ours ends a call with."""
    return STATUS.get(type(error), Code.INTERNAL)


@dataclass
class Calls:
    """What all calls of a server have in common.

    Attributes
    ----------
    tokens : callable
        Returns the tokens that are valid now; None on a server without any.
    anonymous_roles : frozenset of str
        Roles of calls without a token or certificate; where this is empty, a call needs one.
    rate : RateLimit or None
        Of the rows of one client.
    backlog : Backlog or None
        Calls that wait.
    access_log : AccessLog or None
        Where every call is noted.
    certificates : bool
        Whether clients have some, which they are named by.
    span : callable
        A context manager for a method and its gRPC context, in which the call is traced.
    trimmer : MemoryTrimmer or None
        Told of large requests, that what they needed is given back some time.
    connections : Connections or None
        Told of those that calls are admitted on.
    unfinished : UnfinishedRequests
        Requests that have not arrived whole.
    in_flight : int
        Calls that are being answered, and streams that are open.
    closing : bool
        Whether no more are taken.
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
    closing: bool = False
    unfinished: UnfinishedRequests = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = UnfinishedRequests(self._ended_unread)
        self._failures = AuthenticationFailures()

    def unary(
        self, name: str, role: str | None, method: Unary
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of serialized requests, for callers of that role; None for all callers."""

        # To gRPC the request is a stream, of one message: so who calls is known, and may be
        # refused, before the message is read.
        async def answer(_requests: object, context: Any) -> bytes:
            begin_s, code, request = time.monotonic(), Code.OK, b""
            metadata = context.invocation_metadata() or ()
            call = Call(name, _request_id(metadata), _host(context.peer()))
            try:
                await self._admit(call, role, context, metadata, begin_s)
                is_authenticated = role is not None and not call.caller.is_anonymous
                request = (
                    await self.unfinished.receive(context.read, is_authenticated=is_authenticated)
                    or b""
                )
                if self.backlog is not None:
                    self.backlog.mark_received()
                call.check_time()
                self.in_flight += 1
                try:
                    with self.span(name, context):
                        response = method(request, call)
                        return response if isinstance(response, bytes) else await response
                finally:
                    self.in_flight -= 1
            except BaseException as error:
                code = _code_of(error, call)
                await self._refuse(context, code, error, call)
                raise
            finally:
                self._end(call, code, begin_s, len(request))
                del request  # what gRPC ends a refused call with keeps this frame

        return grpc.stream_unary_rpc_method_handler(answer)

    def stream(self, name: str, role: str, method: Stream) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of a stream of serialized requests; answers come one for each, in order."""

        # No generator: gRPC would leave one that is cancelled to the garbage collector.
        async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
            begin_s, code = time.monotonic(), Code.OK
            metadata = context.invocation_metadata() or ()
            call = Call(name, _request_id(metadata), _host(context.peer()))
            self.in_flight += 1
            try:
                await self._admit(call, role, context, metadata, begin_s)
                if call.caller.is_anonymous:
                    requests = self.unfinished.messages(context.read)

                def check() -> None:
                    self._check_unchanged(call, role, context, metadata)

                with self.span(name, context):
                    async with aclosing(method(_Checked(requests, check), call)) as responses:
                        async for response in responses:
                            check()
                            await context.write(response)
            except BaseException as error:
                code = _code_of(error, call)
                await self._refuse(context, code, error, call)
                raise
            finally:
                self.in_flight -= 1
                self._end(call, code, begin_s, 0)

        return grpc.stream_stream_rpc_method_handler(answer)

    def admit_rows(self, call: Call, rows: int) -> None:
        """Note what a call asks for, and refuse it where its caller has asked for too much."""
        call.rows += rows
        if self.rate is not None:
            self.rate.consume(call.caller.name, rows)

    def close(self) -> None:
        """No call comes any more."""
        if self.trimmer is not None:
            self.trimmer.close()

    async def _admit(
        self, call: Call, role: str | None, context: Any, metadata: Metadata, begin_s: float
    ) -> None:
        """Note who calls and until when; refuse callers without the role, and calls too late."""
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline_s = begin_s + left_s
        if self.closing:
            raise ServiceError(
                "this server is being stopped; ask another replica, or in a moment",
                retry_after_s=1.0,  # by then it has ended: what meets its last instant is cancelled
            )
        if role is not None:
            if self.backlog is not None:
                self.backlog.check(begin_s)
            try:
                call.caller = self._authenticated(call, role, context, metadata)
            except UnauthenticatedError:
                await self._failures.delay(
                    call.caller.name, method=call.method, request_id=call.request_id
                )
                raise
            call.caller.require_role(role)
            if self.connections is not None:
                self.connections.mark_used(context.peer())
        call.check_time()

    def _authenticated(self, call: Call, role: str, context: Any, metadata: Metadata) -> Caller:
        """Return the caller by its token, its certificate, or as an anonymous one.

        Raises
        ------
        UnauthenticatedError
            Its token is not valid, or it has none and needs one for that role.
        """
        is_anonymous = self.anonymous_roles and not has_token(metadata)
        if self.tokens is not None and not is_anonymous:
            return self.tokens().authenticate(metadata)
        names = context.auth_context().get("x509_common_name") if self.certificates else None
        if names:
            return Caller(str(names[0].decode(errors="replace")), _ALL_ROLES)
        if role not in self.anonymous_roles:
            raise UnauthenticatedError(
                f"this takes the role {role!r}, which calls without a token do not have here; send "
                "the metadata `authorization: Bearer TOKEN`"
            )
        return replace(call.caller, roles=self.anonymous_roles, is_anonymous=True)

    def _check_unchanged(self, call: Call, role: str, context: Any, metadata: Metadata) -> None:
        """Check that the caller of an open stream is still who it was.

        Raises
        ------
        UnauthenticatedError
            Its token has expired or was revoked, or has other roles or limits by now.
        """
        if self._authenticated(call, role, context, metadata) != call.caller:
            raise UnauthenticatedError(
                f"the roles or limits of {call.caller.name!r} were changed; open the stream again"
            )

    async def _refuse(self, context: Any, code: Code, error: BaseException, call: Call) -> None:
        """End a call with its status; does nothing to one that has been ended from outside.

        What a defect was is in the log alone. gRPC keeps what it ends a call with, and the error
        before it, until Python's collector comes by.
        """
        noted: dict[str, Any] = {"method": call.method, "request_id": call.request_id}
        if isinstance(error, PresageError):
            if reason := _REJECTIONS.get(type(error)):
                self.metrics.rejections.labels(reason).inc()
            if code is Code.INTERNAL:
                log(logging.ERROR, "failed", error=str(error), **noted)
            without_frames(error)
            await context.abort(code, _details(error), ((SAID, "1"), *_retry_hint(error)))
        elif code is Code.INTERNAL:
            log(logging.ERROR, "defect", traceback=True, **noted)
            without_frames(error)
            await context.abort(
                code, f"the server has a defect; see request {call.request_id} in its log"
            )

    def _ended_unread(self) -> None:
        if self.trimmer is not None:
            self.trimmer.trim_soon()

    def _end(self, call: Call, code: Code, begin_s: float, size: int) -> None:
        seconds = time.monotonic() - begin_s
        self.metrics.count_call(call.method, code.name, seconds, call.rows)
        if self.trimmer is not None and size > _LARGE_BYTES:
            self.trimmer.trim_when_idle()
        if self.access_log is not None:
            self.access_log.note(EndedCall(
                time.time(), call.method, code.name, seconds, call.rows, size, call.caller.name,
                call.request_id,
            ))  # fmt: skip


class _Checked:
    """Requests of a stream, each after a check of its caller.

    Not a generator, which would be left to the garbage collector where its call is cancelled.
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
def _host(peer: str) -> Caller:
    """Return a caller without roles: of "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711", "unix:"."""
    return Caller(unquote(peer.partition(":")[2].rpartition(":")[0]) or peer, _NO_ROLES)


def _code_of(error: BaseException, call: Call) -> Code:
    """What a call ends with that ends with this exception."""
    if isinstance(error, PresageError):
        return status_of(error)
    # gRPC's own say that the call is over already, as a cancellation does.
    if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
        return Code.INTERNAL
    late = time.monotonic() >= call.deadline_s
    return Code.DEADLINE_EXCEEDED if late else Code.CANCELLED


def _details(error: PresageError) -> str:
    return str(error).encode(errors="replace")[:_MOST_DETAILS_BYTES].decode(errors="ignore")


def _retry_hint(error: PresageError) -> tuple[tuple[str, str], ...]:
    if not isinstance(error, OverloadedError | ServiceError) or error.retry_after_s is None:
        return ()
    return ((RETRY_AFTER, str(max(1, math.ceil(1000 * error.retry_after_s)))),)


def _request_id(metadata: Metadata) -> str:
    """The caller's own, where it is one; else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return f"{random.getrandbits(64):016x}"
