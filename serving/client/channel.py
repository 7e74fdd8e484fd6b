"""A client's connection: how it is made and kept, and what a status on it means."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import grpc

from presage.errors import (
    ForbiddenError,
    InvalidJobError,
    OverloadedError,
    RefusedReleaseError,
    ServiceError,
    UnauthenticatedError,
    UnknownDeviceError,
)
from presage.serving.client.connection_problem import problem
from presage.serving.codec.wire_requests import FRAME_BYTES, MAX_MESSAGE_BYTES

# gRPC waits a random part of each backoff, so that clients of a server that was restarted do not
# come back all at once. UNAVAILABLE alone: a server that is overloaded is not helped by asking
# again. Twice does no harm: methods are questions, and outcomes have keys.
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
    # Connect again as fast as calls are retried; gRPC's own default waits a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A scheduler and its prediction server share a network; http_proxy is for going out of it.
    ("grpc.enable_http_proxy", 0),
)
RETRY_AFTER = "grpc-retry-pushback-ms"
# The metadata by which a status that a server of ours gave is known from gRPC's own.
SERVER_STATUS_KEY = "x-presage-said"


def raise_status(error: Any, target: str, timeout_s: float, unconnected: str = "") -> NoReturn:
    """Raise the error of ours that a gRPC status stands for.

    ``unconnected`` is why there is no connection, as
    :func:`presage.serving.client.connection_problem.why_unconnected` found it.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        The server refused the question, with the reason it gave.
    OverloadedError
        It has too much to do, or from this client; or the question was too large.
    UnauthenticatedError, ForbiddenError
        It does not know who asks, or does not let them.
    RefusedReleaseError
        A release was not taken, or features are of another version than the one served.
    ServiceError
        No server there, no answer in time, or it failed.
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
    if unconnected or code is grpc.StatusCode.UNAVAILABLE:
        raise ServiceError(
            f"no prediction service at {target}: {unconnected or problem(details)}; start one with "
            "`presage serve`, or give the address of one that runs"
        ) from error
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise ServiceError(
            f"{target} did not answer within {timeout_s:g} s; ask for less at "
            "once, or raise timeout_s"
        ) from error
    raise ServiceError(
        f"{target} failed with {code.name}: {details}; see the server's log"
    ) from error


def is_server_status(error: Any) -> bool:
    """Whether a status is a server's of ours, and not gRPC's own."""
    return any(key == SERVER_STATUS_KEY for key, _ in error.trailing_metadata() or ())


def _retry_after(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == RETRY_AFTER and value.isdigit():
            return int(value) / 1000
    return None
