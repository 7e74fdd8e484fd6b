"""Errors as problem details (RFC 9457), and the HTTP status of each gRPC status."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import grpc

CONTENT_TYPE = "application/problem+json"

Code = grpc.StatusCode

# As in google/rpc/code.proto. A call that was cancelled has no client that reads its status.
HTTP_STATUS: dict[grpc.StatusCode, HTTPStatus] = {
    Code.OK: HTTPStatus.OK,
    Code.CANCELLED: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNKNOWN: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    Code.ABORTED: HTTPStatus.CONFLICT,
    Code.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.DATA_LOSS: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def problem(
    status: HTTPStatus, detail: str, *, code: grpc.StatusCode | None = None, request_id: str = ""
) -> bytes:
    """Return the problem details of an error as JSON.

    Parameters
    ----------
    code : grpc.StatusCode, optional
        Status of the call; None for a request that was rejected before it became one.
    """
    members: dict[str, Any] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
    }
    if code is not None:
        members["grpcStatus"] = code.name
    if request_id:
        members["requestId"] = request_id
    return json.dumps(members).encode() + b"\n"
