"""Where a server listens: one address that it may listen on, with the right credentials."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from pathlib import Path

import grpc

from presage.errors import ServiceError
from presage.serving.server_options import Options, Tls


def address_of(options: Options) -> str:
    """The one address to listen on, once it is sure that it may be and can be.

    One, though a name may have several: gRPC is content with any of them, and a server on
    [::1]:50051 would not notice the other one on 127.0.0.1:50051.

    Raises
    ------
    ServiceError
        The host or port cannot be listened on, or is beyond loopback without leave.
    """
    host, port = options.host, options.port
    if not 0 <= port <= 65535:
        raise ServiceError(f"port {port} does not exist; pass --port 0 to 65535 (0: any free)")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServiceError(
            f"host {host!r} has no address ({error}); pass --host 127.0.0.1, or an address of "
            "this machine with --allow-remote"
        ) from error
    family, _, _, _, where = min(found, key=lambda row: row[0] != socket.AF_INET)
    address = str(where[0])
    if not (options.tls or options.allow_remote or ipaddress.ip_address(address).is_loopback):
        raise ServiceError(
            f"{host} is not a loopback address, and without --tls-cert nothing is encrypted; "
            "listen on 127.0.0.1, give a certificate, or pass --allow-remote on a network that "
            "you trust"
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does it: connections of a server just stopped do not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.shared_port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServiceError(in_use(host, port)) from error
            raise ServiceError(
                f"cannot listen on {target(host, port)} ({error.strerror}); pass another --host "
                "or --port"
            ) from error
    return address


def check_callers(address: str, options: Options) -> None:
    """Check that a server that other machines can reach knows its callers.

    Raises
    ------
    ServiceError
        Neither tokens nor client certificates are asked for beyond loopback.
    """
    if not options.authenticates and not ipaddress.ip_address(address).is_loopback:
        raise ServiceError(
            f"{options.host} is not a loopback address, and every machine that reaches it could "
            "call; pass --tokens FILE (presage token) or --client-ca PEM, or listen on 127.0.0.1"
        )


def add_port(server: grpc.aio.Server, address: str, options: Options) -> int:
    """Let a server listen there; the port, where any was asked for.

    Raises
    ------
    ServiceError
        A certificate cannot be read, or the port was taken in the meantime.
    """
    where = target(address, options.port)
    try:
        if options.tls is None:
            return server.add_insecure_port(where)
        return server.add_secure_port(where, _credentials(options.tls))
    except RuntimeError as error:
        if options.tls is None:
            raise ServiceError(in_use(options.host, options.port)) from error
        raise ServiceError(
            f"{options.tls.certificate}: no certificate that goes with {options.tls.key}; give "
            "--tls-cert and --tls-key in PEM, the key without a passphrase"
        ) from error


def target(host: str, port: int) -> str:
    """What a client is given."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_use(host: str, port: int) -> str:
    """What to say of a port that another process has."""
    return f"port {target(host, port)} is in use; stop the other server or pass --port"


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(_read(tls.key, "--tls-key"), _read(tls.certificate, "--tls-cert"))],
        root_certificates=_read_authority(tls.client_ca) if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )


def _read_authority(path: Path) -> bytes:
    """Who may vouch for clients; gRPC would not say that it is this file which is none."""
    content = _read(path, "--client-ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, UnicodeError) as error:
        raise ServiceError(
            f"--client-ca {path}: holds no certificate; give the authority's, in PEM"
        ) from error
    return content


def _read(path: Path, option: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ServiceError(
            f"{option} {path}: cannot be read ({error.strerror}); give a PEM file"
        ) from error
    if b"-----BEGIN " not in content:
        raise ServiceError(f"{option} {path}: is not PEM; convert it with openssl")
    return content
