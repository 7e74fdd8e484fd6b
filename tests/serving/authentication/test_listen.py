"""Listening addresses and TLS credentials of a server, and errors about them."""

from __future__ import annotations

import asyncio
import socket
import subprocess

import grpc
import pytest

from presage.errors import ServiceError
from presage.serving.authentication.listen import (
    add_port,
    port_in_use_message,
    resolve_address,
    target,
)
from presage.serving.server_options import Options, Tls
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """An authority, and two certificates with their keys."""
    folder = tmp_path_factory.mktemp("pems")
    authority = make_authority(folder, "authority")
    return {
        "folder": folder,
        "authority": authority,
        "server": make_certificate(folder, "server", authority),
        "other": make_certificate(folder, "other", authority),
    }


def refused(options: Options) -> str:
    with pytest.raises(ServiceError) as caught:
        resolve_address(options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# One address -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.9.9.9", "127.9.9.9"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_loopback_needs_no_permission(host, address):
    assert resolve_address(Options(host=host, port=0)) == address


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:127.0.0.1", "192.0.2.1"])
def test_other_addresses_need_permission_or_encryption(host, tmp_path):
    said = refused(Options(host=host, port=0))

    assert said.startswith(f"{host} is not a loopback address")
    assert "--allow-remote" in said
    if host in {"0.0.0.0", "::"}:
        assert resolve_address(Options(host=host, port=0, allow_remote=True)) == host
        assert resolve_address(Options(host=host, port=0, tls=Tls(tmp_path, tmp_path))) == host


def test_an_address_of_another_machine_is_rejected():
    said = refused(Options(host="192.0.2.1", port=4711, allow_remote=True))

    assert said.startswith("cannot listen on 192.0.2.1:4711 (Cannot assign requested address)")


@pytest.mark.parametrize("host", ["", "no-such-host.invalid", "a" * 70, "a..b", "1.2.3.4.5"])
def test_an_invalid_host_is_rejected(host):
    said = refused(Options(host=host, port=0))

    assert said.startswith(f"host {host!r} has no address (")
    assert "pass --host" in said


@pytest.mark.parametrize("port", [-1, 65_536, 10**9])
def test_an_invalid_port_is_rejected(port):
    assert refused(Options(port=port)).startswith(f"port {port} is out of range; pass --port 0 to")


# Ports in use ----------------------------------------------------------------------------------


def listener(*options: int, host: str = "127.0.0.1") -> socket.socket:
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for option in options:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    server.bind((host, 0))
    server.listen()
    return server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("theirs", [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,)])
def test_the_error_names_a_port_in_use(host, theirs):
    with listener(*theirs, host=host) as other:
        port = other.getsockname()[1]
        assert refused(Options(host=host, port=port)) == port_in_use_message(host, port)
    assert (
        port_in_use_message("::1", 1)
        == "port [::1]:1 is in use; stop the other server or pass --port"
    )


def test_a_port_is_shared_only_on_request():
    with listener(socket.SO_REUSEPORT) as other:
        port = other.getsockname()[1]
        assert resolve_address(Options(port=port, shared_port=True)) == "127.0.0.1"
    with listener() as other:
        port = other.getsockname()[1]
        assert refused(Options(port=port, shared_port=True)) == port_in_use_message(
            "127.0.0.1", port
        )


def test_connections_of_a_stopped_server_do_not_block_its_port():
    with listener(socket.SO_REUSEADDR) as server:  # which gRPC's have
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            connection.close()  # the side that closes first is the one that lingers
            client.recv(1)

    assert resolve_address(Options(port=port)) == "127.0.0.1"


# Servers ---------------------------------------------------------------------------------------


def listening(options: Options, address: str = "127.0.0.1") -> int:
    """Return the port of a server."""

    async def main() -> int:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        try:
            return add_port(server, address, options)
        finally:
            await server.stop(0)

    return asyncio.run(main())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_port_zero_selects_a_free_port(address):
    assert 0 < listening(Options(port=0), address) < 65_536
    assert listening(Options(port=(port := free_port()))) == port


def test_a_port_taken_after_the_check_is_an_error():
    with listener() as other:
        port = other.getsockname()[1]
        with pytest.raises(ServiceError) as caught:
            listening(Options(port=port))
        assert str(caught.value) == port_in_use_message("127.0.0.1", port)


def test_a_certificate_and_its_key_are_accepted(pems):
    (certificate, key), (authority, _) = pems["server"], pems["authority"]

    assert listening(Options(port=0, tls=Tls(certificate, key))) > 0
    assert listening(Options(port=0, tls=Tls(certificate, key, authority))) > 0


def test_the_error_names_invalid_credentials(pems):
    folder, (certificate, key) = pems["folder"], pems["server"]
    (nonsense := folder / "nonsense.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
    )
    (der := folder / "server.der").write_bytes(b"\x30\x82\xff")
    (locked := folder / "locked.key").touch()
    subprocess.run(
        ["openssl", "ec", "-aes128", "-in", key, "-out", locked, "-passout", "pass:x"],
        check=True, capture_output=True,
    )  # fmt: skip
    none = folder / "none.pem"
    for tls, said in [
        (Tls(certificate, pems["other"][1]), f"{certificate}: is no certificate for the key"),
        (Tls(certificate, locked), "the key without a passphrase"),
        (Tls(nonsense, key), f"{nonsense}: is no certificate for the key {key}"),
        (Tls(key, certificate), f"{key}: is no certificate for the key {certificate}"),
        (Tls(none, key), f"--tls-cert {none}: cannot be read (No such file or directory)"),
        (Tls(certificate, none), f"--tls-key {none}: cannot be read"),
        (Tls(certificate, folder), f"--tls-key {folder}: cannot be read (Is a directory)"),
        (Tls(der, key), f"--tls-cert {der}: is not PEM; convert it with openssl"),
        (Tls(certificate, key, none), f"--client-ca {none}: cannot be read"),
        (Tls(certificate, key, nonsense), f"--client-ca {nonsense}: contains no certificate"),
        (Tls(certificate, key, key), f"--client-ca {key}: contains no certificate"),
    ]:
        with pytest.raises(ServiceError) as caught:
            listening(Options(port=0, tls=tls))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "127.0.0.1:5"), ("::1", "[::1]:5")])
def test_client_credentials_match_the_options(host, said):
    assert target(host, 5) == said
