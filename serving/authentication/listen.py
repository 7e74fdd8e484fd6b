"""Listening address of a server: its resolution, permission checks and TLS credentials."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from pathlib import Path

import grpc

from presage.errors import ServiceError
from presage.serving.server_options import Options, Tls


def resolve_address(options: Options) -> str:
    """Return the address to listen on, after checking that it is allowed and free.

    A host name may have several addresses. gRPC is satisfied with any of them, so a server on
    [::1]:50051 would not notice another server on 127.0.0.1:50051; hence exactly one is used.

    Raises
    ------
    ServiceError
        The server cannot listen on the host or port, or the address is not a loopback address and
        neither TLS nor ``allow_remote`` is set.
    """
    host, port = options.host, options.port
    if not 0 <= port <= 65535:
        raise ServiceError(f"port {port} is out of range; pass --port 0 to 65535 (0: any free one)")
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
            f"{host} is not a loopback address, and without --tls-cert traffic is not encrypted; "
            "pass --host 127.0.0.1, --tls-cert and --tls-key, or --allow-remote on a trusted "
            "network"
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As in gRPC: lingering connections of a stopped server do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.shared_port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServiceError(port_in_use_message(host, port)) from error
            raise ServiceError(
                f"cannot listen on {target(host, port)} ({error.strerror}); pass another --host "
                "or --port"
            ) from error
    return address


def check_authentication(address: str, options: Options) -> None:
    """Check that a server that other machines can reach authenticates its callers.

    Raises
    ------
    ServiceError
        The address is not a loopback address and neither tokens nor client certificates are
        required.
    """
    if not options.authenticates and not ipaddress.ip_address(address).is_loopback:
        raise ServiceError(
            f"{options.host} is not a loopback address, so every machine that reaches it could "
            "call; pass --tokens FILE (presage token), --client-ca PEM, or --host 127.0.0.1"
        )


def add_port(server: grpc.aio.Server, address: str, options: Options) -> int:
    """Add the listening port to a server; return its number, also for port 0.

    Raises
    ------
    ServiceError
        A certificate cannot be read, or another process has taken the port in the meantime.
    """
    where = target(address, options.port)
    try:
        if options.tls is None:
            return server.add_insecure_port(where)
        return server.add_secure_port(where, _credentials(options.tls))
    except RuntimeError as error:
        if options.tls is None:
            raise ServiceError(port_in_use_message(options.host, options.port)) from error
        raise ServiceError(
            f"{options.tls.certificate}: is no certificate for the key {options.tls.key}; give "
            "--tls-cert and --tls-key in PEM, the key without a passphrase"
        ) from error


def target(host: str, port: int) -> str:
    """Return the gRPC target of a host and port, for clients."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_in_use_message(host: str, port: int) -> str:
    """Return the error message for a port that another process listens on."""
    return f"port {target(host, port)} is in use; stop the other server or pass --port"


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(_read(tls.key, "--tls-key"), _read(tls.certificate, "--tls-cert"))],
        root_certificates=_read_authority(tls.client_ca) if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )


def _read_authority(path: Path) -> bytes:
    """Return the certificate authority for client certificates.

    The file is checked here because gRPC's error would not name it.
    """
    content = _read(path, "--client-ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, UnicodeError) as error:
        raise ServiceError(
            f"--client-ca {path}: contains no certificate; give the authority's, in PEM"
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
