"""Errors of clients that reach no server name the reason, for any text of gRPC."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.serving.client.client import AsyncPresageClient, PresageClient
from presage.serving.client.credentials import Credentials
from tests.serving.support.certificates import make_authority, make_certificate


@contextmanager
def closed_port():
    """Yield a port without a listener; it stays bound, so that no other program can listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def mute_port():
    """Yield a port that accepts connections and never responds."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        yield mute.getsockname()[1]


@contextmanager
def server(credentials=None):
    found = grpc.server(ThreadPoolExecutor(2))
    port = (
        found.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else found.add_secure_port("127.0.0.1:0", credentials)
    )
    found.start()
    try:
        yield port
    finally:
        found.stop(None).wait()


def presage_error(target, timeout_s, credentials):
    with (
        PresageClient(target, timeout_s=timeout_s, credentials=credentials) as client,
        pytest.raises(ServiceError) as error,
    ):
        client.release()
    return str(error.value)


def async_error(target, timeout_s, credentials):
    async def ask():
        client = AsyncPresageClient(target, timeout_s=timeout_s, credentials=credentials)
        async with client:
            await client.release()

    with pytest.raises(ServiceError) as error:
        asyncio.run(ask())
    return str(error.value)


def cluster_error(target, timeout_s, credentials):
    with (
        ClusterClient(target, timeout_s=timeout_s, credentials=credentials) as client,
        pytest.raises(ServiceError) as error,
    ):
        client.list()
    return str(error.value)


CLIENTS = (presage_error, async_error, cluster_error)


@pytest.mark.parametrize("said_by", CLIENTS)
@pytest.mark.parametrize("timeout_s", [0.5, 1.0, 20.0])
def test_a_closed_port_is_named_after_the_last_retry_and_after_the_deadline(said_by, timeout_s):
    with closed_port() as port:
        said = said_by(f"127.0.0.1:{port}", timeout_s, None)

    assert f"at 127.0.0.1:{port}: connection refused, nothing listens there; start" in said
    assert "timeout_s" not in said


@pytest.mark.parametrize("said_by", CLIENTS)
def test_a_host_without_an_address_is_unknown(said_by):
    assert "unknown host name" in said_by("no.such.host.invalid:1", 20.0, None)


def test_a_silent_port_is_not_reported_as_a_slow_server():
    with mute_port() as port:
        assert "it does not answer as a gRPC server" in presage_error(
            f"127.0.0.1:{port}", 2.0, None
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    mine, other = make_authority(folder, "mine"), make_authority(folder, "other")
    certificate, key = make_certificate(folder, "server", mine)
    served = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    return mine[0], other[0], served


@pytest.mark.parametrize("said_by", CLIENTS)
def test_the_error_names_a_tls_mismatch(said_by, authority):
    mine, other, served = authority
    with server(served) as port:
        target = f"127.0.0.1:{port}"
        assert "if it uses TLS, give its authority's certificate" in said_by(target, 5.0, None)
        said = said_by(target, 5.0, Credentials(ca=other))
        assert "certificate is not signed by the given authority" in said
    with server() as port:
        assert "TLS handshake failed" in said_by(f"127.0.0.1:{port}", 5.0, Credentials(ca=mine))
