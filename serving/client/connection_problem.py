"""Reasons for a missing connection, translated from gRPC's error details.

A call that is retried until its deadline ends as "deadline exceeded", whatever kept it from
reaching the server. A second call on the same channel without retries fails at once if there is no
connection, and its details name the cause.
"""

from __future__ import annotations

from typing import Any

import grpc

PROBE_S = 0.2  # without a connection the probe fails within milliseconds
_PROBE = "/grpc.health.v1.Health/Check"  # needs no token; the response does not matter

_SILENT = (
    "something listens there, but it does not answer as a gRPC server without TLS; if it uses "
    "TLS, give its authority's certificate, otherwise check whether it hangs"
)
# Part of gRPC's details -> description; the first match counts.
_CAUSES = {
    "Connection refused": "connection refused, nothing listens there",
    "Domain name not found": "unknown host name",
    "address lookup failed": "unknown host name",
    "DNS resolution failed": "unknown host name",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by the given authority",
    "Hostname Verification": "its certificate is for another host name",
    "Peer name": "its certificate is for another host name",
    "WRONG_VERSION_NUMBER": "the TLS handshake failed, it does not use TLS",
    "andshake": "the TLS handshake failed; it does not use TLS, or needs a client certificate",
    "SSL_ERROR": "the TLS handshake failed; it does not use TLS, or needs a client certificate",
    "SETTINGS frame": _SILENT,
    "Socket closed": _SILENT,
    "Connection reset": _SILENT,
    "No route to host": "no route to that host",
    "Network is unreachable": "its network is unreachable",
    "timed out": "the host does not answer",
}


def describe_problem(details: str) -> str:
    """Return a plain description of the cause in gRPC's details, or else the details."""
    found = (description for part, description in _CAUSES.items() if part in details)
    return next(found, details)


def is_timeout(error: Any) -> bool:
    """Return whether a call ended because its deadline passed."""
    return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)


def find_connection_problem(channel: grpc.Channel) -> str:
    """Return why a channel has no connection; "" if it has one or the reason is unknown."""
    try:
        probe: Any = channel.unary_unary(_PROBE)
        probe(b"", timeout=PROBE_S)
    except grpc.RpcError as error:
        return _unavailable(error)
    except ValueError:  # the channel was closed in the meantime
        pass
    return ""


async def find_connection_problem_async(channel: grpc.aio.Channel) -> str:
    """As :func:`find_connection_problem`."""
    try:
        probe: Any = channel.unary_unary(_PROBE)
        await probe(b"", timeout=PROBE_S)
    except grpc.RpcError as error:
        return _unavailable(error)
    except grpc.aio.UsageError:
        pass
    return ""


def _unavailable(error: Any) -> str:
    is_unconnected = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
    return describe_problem(error.details() or "") if is_unconnected else ""
