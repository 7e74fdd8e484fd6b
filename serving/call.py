"""A call from its arrival to its end: who it is from, whether there is time, what it ended with.

Methods take and give bytes and know nothing of gRPC; one table maps their errors to its statuses.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc

from presage.features.errors import (
    ConfigError,
    ExpiredError,
    ForbiddenError,
    GraphError,
    InvalidJobError,
    InvalidRequestError,
    InvalidTensorError,
    OutcomeLogError,
    OverloadedError,
    PresageError,
    ProfilingError,
    RefusedReleaseError,
    RegistryError,
    ReleaseError,
    ServiceError,
    StaleSchemaError,
    TableError,
    TrainingError,
    UnauthenticatedError,
    UnknownDeviceError,
    UnknownModelError,
)
from presage.serving.backlog import Backlog
from presage.serving.callers import ROLES, Caller, Tokens
from presage.serving.limits import RateLimit
from presage.serving.log import log
from presage.serving.metrics import Metrics

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
    StaleSchemaError: Code.FAILED_PRECONDITION,
    RefusedReleaseError: Code.FAILED_PRECONDITION,
    ExpiredError: Code.DEADLINE_EXCEEDED,
    OverloadedError: Code.RESOURCE_EXHAUSTED,
    UnauthenticatedError: Code.UNAUTHENTICATED,
    ForbiddenError: Code.PERMISSION_DENIED,
    ConfigError: Code.INTERNAL,
    ReleaseError: Code.INTERNAL,
    TableError: Code.INTERNAL,
    ProfilingError: Code.INTERNAL,
    TrainingError: Code.INTERNAL,
    RegistryError: Code.UNAVAILABLE,
    ServiceError: Code.UNAVAILABLE,
    OutcomeLogError: Code.UNAVAILABLE,
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
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class Call:
    """A call that is being answered.

    Attributes
    ----------
    deadline_s : float
        By ``time.monotonic()``; infinite where the caller waits for ever.
    rows : int
        What it asks for, once that is known.
    """

    method: str
    caller: Caller
    deadline_s: float
    request_id: str
    rows: int = 0

    def check_time(self) -> None:
        """Refuse to work for a caller that has stopped to wait."""
        if time.monotonic() >= self.deadline_s:
            raise ExpiredError(
                "the deadline passed before the work was begun; ask for less at once, wait "
                "longer, or ask another replica"
            )


Unary = Callable[[bytes, Call], bytes | Awaitable[bytes]]
Stream = Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]
Span = Callable[[str, Any], Any]


def no_span(_method: str, _metadata: Any) -> Any:
    """Calls that are not traced."""
    return nullcontext()


@dataclass
class Calls:
    """What all calls of a server have in common.

    Attributes
    ----------
    tokens : callable
        Those that are let in now; None where nobody is asked for one.
    rate : RateLimit or None
        Of the rows of one client.
    backlog : Backlog or None
        Calls that wait.
    span : callable
        A context manager for a method and its metadata, in which the call is traced.
    in_flight : int
        Calls that are being answered.
    closing : bool
        Whether no more are taken.
    """

    metrics: Metrics
    tokens: Callable[[], Tokens] | None = None
    rate: RateLimit | None = None
    backlog: Backlog | None = None
    access_log: bool = False
    span: Span = field(default=no_span)
    in_flight: int = 0
    closing: bool = False

    def unary(
        self, name: str, role: str | None, method: Unary
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of serialized requests, for callers of that role; None for all callers."""

        async def answer(request: bytes, context: Any) -> bytes:
            begin_s = time.monotonic()
            code, call = Code.OK, None
            self.in_flight += 1
            try:
                call = self._begin(name, role, context, begin_s)
                with self.span(name, context):
                    response = method(request, call)
                    return response if isinstance(response, bytes) else await response
            except PresageError as error:
                code = STATUS[type(error)]
                await self._abort(context, code, error, name)
            except grpc.aio.AbortError:
                raise
            except BaseException as error:
                code = Code.CANCELLED if not isinstance(error, Exception) else Code.INTERNAL
                if code is Code.CANCELLED:
                    raise
                await self._fail(context, name, call)
            finally:
                self._end(name, code, begin_s, call, len(request))
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(answer)

    def stream(self, name: str, role: str, method: Stream) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of a stream of serialized requests; answers come one for each, in order."""

        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            begin_s = time.monotonic()
            code, call = Code.OK, None
            self.in_flight += 1
            try:
                call = self._begin(name, role, context, begin_s)
                async for response in method(requests, call):
                    yield response
            except PresageError as error:
                code = STATUS[type(error)]
                await self._abort(context, code, error, name)
            except (GeneratorExit, grpc.aio.AbortError):
                code = Code.CANCELLED
                raise
            except Exception:
                code = Code.INTERNAL
                await self._fail(context, name, call)
            finally:
                self._end(name, code, begin_s, call, 0)

        return grpc.stream_stream_rpc_method_handler(answer)

    def take(self, call: Call, rows: int) -> None:
        """Note what a call asks for, and refuse it where its caller has asked for too much."""
        call.rows += rows
        if self.rate is not None:
            self.rate.take(call.caller.name, rows)

    def _begin(self, name: str, role: str | None, context: Any, begin_s: float) -> Call:
        if self.closing:
            raise ServiceError(
                "this server is being stopped; ask another replica, or in a moment",
                retry_after_s=1.0,  # by then it has ended: what meets its last instant is cancelled
            )
        if self.backlog is not None and role is not None:
            self.backlog.check(begin_s)
        metadata = context.invocation_metadata() or ()
        if self.tokens is not None and role is not None:
            caller = self.tokens().caller(metadata)
            caller.must_be(role)
        else:
            caller = Caller(_name_of(context), frozenset(ROLES))
        left_s = context.time_remaining()
        deadline_s = float("inf") if left_s is None else begin_s + left_s
        call = Call(name, caller, deadline_s, _request_id(metadata))
        call.check_time()
        return call

    async def _abort(self, context: Any, code: Code, error: PresageError, name: str) -> None:
        """End the call with the status of an error of ours."""
        hint: tuple[tuple[str, str], ...] = ()
        if isinstance(error, OverloadedError | ServiceError) and error.retry_after_s is not None:
            hint = ((RETRY_AFTER, str(max(1, round(1000 * error.retry_after_s)))),)
        if reason := _REJECTIONS.get(type(error)):
            self.metrics.rejections.labels(reason).inc()
        if code is Code.INTERNAL:
            log(logging.ERROR, "failed", method=name, error=str(error))
        await context.abort(code, str(error), hint)

    async def _fail(self, context: Any, name: str, call: Call | None) -> None:
        """End a call that found a defect of this server; what it was is in the log alone."""
        request_id = call.request_id if call else ""
        log(logging.ERROR, "defect", traceback=True, method=name, request_id=request_id)
        await context.abort(
            Code.INTERNAL, f"the server has a defect; see request {request_id} in its log"
        )

    def _end(self, name: str, code: Code, begin_s: float, call: Call | None, size: int) -> None:
        self.in_flight -= 1
        seconds = time.monotonic() - begin_s
        self.metrics.count_call(name, code.name, seconds, call.rows if call else 0)
        if self.access_log:
            log(
                logging.INFO, "call", method=name, code=code.name, ms=round(1000 * seconds, 3),
                rows=call.rows if call else 0, request_bytes=size,
                client=call.caller.name if call else "", request_id=call.request_id if call else "",
            )  # fmt: skip


def _name_of(context: Any) -> str:
    """A client's certificate's name, else the host it calls from."""
    names = context.auth_context().get("x509_common_name")
    if names:
        return str(names[0].decode(errors="replace"))
    peer = unquote(context.peer())  # "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711", "unix:"
    return peer.partition(":")[2].rpartition(":")[0] or peer


def _request_id(metadata: Any) -> str:
    """The caller's own, where it is one; else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)
