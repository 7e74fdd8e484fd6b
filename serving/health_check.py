"""Health check of a Presage server, for container engines and the kubelet.

``python -m presage.serving.health_check HOST:PORT`` exits with status 0 if the server is SERVING by
``grpc.health.v1``. The kubelet's own gRPC probes do not support TLS; this program does. It needs no
token and no package beyond those of ``presage[serve]``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from presage.errors import PresageError, ServiceError
from presage.serving.client.credentials import Credentials, read_credentials
from presage.system.text.printable import error_line

TIMEOUT_S = 3.0


def check_health(
    target: str,
    *,
    credentials: Credentials | None = None,
    server_name: str = "",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Raise ServiceError unless a server reports SERVING.

    Parameters
    ----------
    target : str
        Address of the server, as HOST:PORT.
    credentials : Credentials, optional
        Certificate authority of the server; without one the connection is not encrypted.
    server_name : str
        Name in the server's certificate, if it is not the host of ``target``.
    timeout_s : float
        Time limit of the check, including the connection.

    Raises
    ------
    ServiceError
        No server responds in time, or it reports another status, as while it loads a release.
    """
    options = [("grpc.enable_http_proxy", 0)]
    names = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    secure = None if credentials is None else credentials.channel_credentials()
    channel = (
        grpc.insecure_channel(target, options=options)
        if secure is None
        else grpc.secure_channel(target, secure, options=[*options, *names])
    )
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise ServiceError(f"{target}: {error.code().name}: {error.details()}") from error
    if response.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
        raise ServiceError(f"{target} is {name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Check a server; return the exit status, 1 with the reason in one line."""
    parser = argparse.ArgumentParser(
        prog="python -m presage.serving.health_check",
        description="Exit with status 0 if a Presage server is serving.",
    )
    parser.add_argument("target", metavar="HOST:PORT", help="Address of the server.")
    parser.add_argument(
        "--ca", type=Path, metavar="PEM",
        help="Certificate authority of the server. The connection is then encrypted.",
    )  # fmt: skip
    parser.add_argument(
        "--server-name", default="", metavar="NAME",
        help="Name in the server's certificate, if it is not HOST.",
    )  # fmt: skip
    parser.add_argument(
        "--timeout-s", type=float, default=TIMEOUT_S, metavar="SECONDS",
        help="Time limit (default: %(default)g).",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        check_health(
            args.target, credentials=read_credentials(None, args.ca),
            server_name=args.server_name, timeout_s=args.timeout_s,
        )  # fmt: skip
    except PresageError as error:
        sys.stderr.write(f"error: {error_line(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
