"""gRPC channel of a client: its options, its retries, and the errors for gRPC statuses."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import grpc

from presage.errors import (
    ForbiddenError,
    InvalidJobError,
    MissingMethodError,
    OverloadedError,
    RefusedReleaseError,
    ServiceError,
    UnauthenticatedError,
    UnknownDeviceError,
)
from presage.serving.client.connection_problem import describe_problem
from presage.serving.codec.request_limits import FRAME_BYTES, MAX_MESSAGE_BYTES

# gRPC randomizes each backoff, so that clients of a restarted server do not reconnect all at once.
# Only UNAVAILABLE is retried: retries would not help an overloaded server. Retries are safe:
# predictions have no side effects, and outcomes have idempotency keys.
_RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "presage.v1.PredictionService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
OPTIONS = (
    ("grpc.service_config", json.dumps(_RETRY)),
    ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),  # a larger request is not retried
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", FRAME_BYTES),
    # Reconnect as fast as calls are retried; gRPC's default waits a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A scheduler and its prediction server share a network; http_proxy is for other networks.
    ("grpc.enable_http_proxy", 0),
)
RETRY_AFTER = "grpc-retry-pushback-ms"
# Metadata that marks a status as set by a Presage server and not by gRPC itself.
SERVER_STATUS_KEY = "x-presage-error"


def raise_status(error: Any, target: str, timeout_s: float, unconnected: str = "") -> NoReturn:
    """Raise the PresageError that corresponds to a gRPC status.

    ``unconnected`` is the reason for a missing connection, from
    :func:`presage.serving.client.connection_problem.find_connection_problem`.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        The server rejected the request, with its reason.
    OverloadedError
        The server is overloaded, this client exceeds its rate, or the request is too large.
    UnauthenticatedError, ForbiddenError
        The server does not know the credentials, or they lack a role.
    RefusedReleaseError
        The server rejected a release, or the features have another version than the served ones.
    MissingMethodError
        The server does not have the method.
    ServiceError
        No server is reachable, it did not answer in time, or it failed.
    """
    code, details = error.code(), error.details()
    known = {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidJobError,
        grpc.StatusCode.NOT_FOUND: UnknownDeviceError,
        grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
        grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
        grpc.StatusCode.FAILED_PRECONDITION: RefusedReleaseError,
    }
    if code in known:
        raise known[code](details) from error
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise OverloadedError(f"{target}: {details}", retry_after_s=_retry_after(error)) from error
    if code is grpc.StatusCode.UNAVAILABLE and is_server_status(error):
        raise ServiceError(f"{target}: {details}") from error
    if code is grpc.StatusCode.UNIMPLEMENTED:
        raise MissingMethodError(
            f"{target} does not support this call ({details}); update the server"
        ) from error
    if unconnected or code is grpc.StatusCode.UNAVAILABLE:
        problem = unconnected or describe_problem(details)
        raise ServiceError(
            f"no prediction service at {target}: {problem}; start one with `presage serve`, "
            "or give the address of a running one"
        ) from error
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise ServiceError(
            f"{target} did not answer within {timeout_s:g} s; send smaller requests, or raise "
            "timeout_s"
        ) from error
    raise ServiceError(
        f"{target} failed with {code.name}: {details}; see the server's log"
    ) from error


def is_server_status(error: Any) -> bool:
    """Return whether a Presage server set the status, rather than gRPC itself."""
    return any(key == SERVER_STATUS_KEY for key, _ in error.trailing_metadata() or ())


def _retry_after(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == RETRY_AFTER and value.isdigit():
            return int(value) / 1000
    return None
