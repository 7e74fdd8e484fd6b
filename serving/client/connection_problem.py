"""Why a client has no connection: gRPC's own words for it, found and said in plain ones.

A call that is retried until its time is up ends as "deadline exceeded", whatever kept it from
reaching the server. Another call on the same channel, which is not retried, fails at once where
there is no connection, and names the cause.
"""

from __future__ import annotations

from typing import Any

import grpc

PROBE_S = 0.2  # without a connection the answer is there within milliseconds
_PROBE = "/grpc.health.v1.Health/Check"  # asked without a token, and no matter what is answered

_SILENT = (
    "something listens there, but it does not answer as a gRPC server without TLS would; if it "
    "uses TLS, give its authority's certificate, else see whether it hangs"
)
# A part of gRPC's details -> what is said of it; the first that is found counts.
_CAUSES = {
    "Connection refused": "connection refused, nothing listens there",
    "Domain name not found": "unknown host name",
    "address lookup failed": "unknown host name",
    "DNS resolution failed": "unknown host name",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by the authority that was given",
    "Hostname Verification": "its certificate is for another host name",
    "Peer name": "its certificate is for another host name",
    "WRONG_VERSION_NUMBER": "the TLS handshake failed, it does not use TLS",
    "andshake": "the TLS handshake failed; it does not use TLS, or asks for a client certificate",
    "SSL_ERROR": "the TLS handshake failed; it does not use TLS, or asks for a client certificate",
    "SETTINGS frame": _SILENT,
    "Socket closed": _SILENT,
    "Connection reset": _SILENT,
    "No route to host": "no route to that host",
    "Network is unreachable": "its network is unreachable",
    "timed out": "the host does not answer",
}


def problem(details: str) -> str:
    """Return the cause that gRPC's details name, in plain words; else the details."""
    found = (said for part, said in _CAUSES.items() if part in details)
    return next(found, details)


def is_late(error: Any) -> bool:
    """Whether a call ended because its time was up: then it is worth asking why."""
    return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)


def why_unconnected(channel: grpc.Channel) -> str:
    """Return why a channel has no connection; "" where it has one, or it cannot be told."""
    try:
        ask: Any = channel.unary_unary(_PROBE)
        ask(b"", timeout=PROBE_S)
    except grpc.RpcError as error:
        return _unavailable(error)
    except ValueError:  # the channel was closed meanwhile
        pass
    return ""


async def why_unconnected_async(channel: grpc.aio.Channel) -> str:
    """As :func:`why_unconnected`."""
    try:
        ask: Any = channel.unary_unary(_PROBE)
        await ask(b"", timeout=PROBE_S)
    except grpc.RpcError as error:
        return _unavailable(error)
    except grpc.aio.UsageError:
        pass
    return ""


def _unavailable(error: Any) -> str:
    is_unconnected = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
    return problem(error.details() or "") if is_unconnected else ""
