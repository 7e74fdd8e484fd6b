"""Floods of a real server by clients that begin calls and do not end them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from presage.errors import UnauthenticatedError
from presage.serving.admission.connection_limits import Connections, connections
from presage.serving.authentication.token_file import add_token
from presage.serving.client.client import PresageClient
from presage.serving.client.credentials import Credentials
from presage.serving.server_options import Options
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.floods import MIB, growth_under_unfinished_bytes
from tests.serving.support.http2 import PREDICT, Connection
from tests.serving.support.processes import free_port, serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import stays_true, wait_until

STREAM = "/presage.v1.PredictionService/PredictStream"
INFER = "/inference.GRPCInferenceService/ModelInfer"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture(params=["open to this machine", "TLS and tokens"])
def server(request, release, tmp_path):
    """A server as a process, the CA of its certificate, and a client's credentials."""
    options, credentials, ca = [], Credentials(), None
    if request.param == "TLS and tokens":
        authority = make_authority(tmp_path, "authority")
        certificate, key = make_certificate(tmp_path, "server", authority)
        ca = authority[0]
        token = add_token(tmp_path / "tokens", "ann", ["predict"])
        options = ["--tls-cert", certificate, "--tls-key", key, "--tokens", tmp_path / "tokens"]
        credentials = Credentials(token=token, ca=ca)
    arguments = ("--release", release.folder, "--no-outcomes", *options)
    with serving(*arguments, cwd=tmp_path) as running:
        yield running, ca, credentials


@contextmanager
def connected(server, count: int):
    running, ca, _ = server
    with ExitStack() as stack:
        opened = [Connection(running.port, ca) for _ in range(count)]
        for one in opened:
            stack.callback(one.close)
        yield opened


def test_thousands_of_idle_calls_do_not_block_other_clients(server):
    """1,000 half-open calls, 1,000 idle streams and 1,000 health watches, during other requests."""
    running, _, credentials = server
    with (
        PresageClient(running.target, timeout_s=30, credentials=credentials) as client,
        connected(server, 12) as opened,
    ):
        for position, one in enumerate(opened):
            for _ in range(250):
                stream = one.call((PREDICT, STREAM, WATCH)[position % 3], credentials.token)
                if position % 3 == 2:
                    one.message(stream, 0, 0)
            client.release()
        for _ in range(200):
            client.release()
        # Half-open calls end by themselves; streams and watches stay for as long as they like.
        half_open, idle = opened[::3], opened[1::3]
        wait_until(lambda: all(len(one.ended) == 250 for one in half_open))
        assert not any(one.ended for one in idle)
        client.release()


@pytest.mark.parametrize("count", [1, 25])  # connections
def test_unfinished_messages_take_little_memory(server, count):
    """250 messages of 4 MiB, each without its last bytes, by clients without a token."""
    running, ca, credentials = server
    with PresageClient(running.target, timeout_s=30, credentials=credentials) as client:
        grown_bytes = growth_under_unfinished_bytes(
            running.process.pid, running.port, client.release, ca=ca, connections=count
        )
    assert grown_bytes < 150 * MIB


@pytest.mark.parametrize("method", [STREAM, CHECK, WATCH, REFLECTION, INFER])
def test_unfinished_messages_of_every_method_take_little_memory(release, tmp_path, method):
    with (
        serving("--release", release.folder, "--no-outcomes", cwd=tmp_path) as running,
        PresageClient(running.target, timeout_s=30) as client,
    ):
        grown_bytes = growth_under_unfinished_bytes(
            running.process.pid, running.port, client.release, method=method
        )
    assert grown_bytes < 150 * MIB


@pytest.mark.parametrize("server", ["TLS and tokens"], indirect=True)
def test_a_call_without_a_token_is_rejected_before_its_message_arrives(server):
    running, ca, _ = server
    with connected(server, 1) as (one,):
        stream = one.call()
        wait_until(lambda: stream in one.ended)
        assert one.message(stream, 4 * MIB, 100) == 0
    with (
        PresageClient(running.target, credentials=Credentials(ca=ca)) as client,
        pytest.raises(UnauthenticatedError),
    ):
        client.release()


def test_the_least_recently_used_connections_of_a_host_are_closed_first(release):
    port = free_port()
    with start_server(release, Options(port=port)) as server:
        bounded = Connections(lambda: port, max_per_host=10)
        with PresageClient(server.target) as client, ExitStack() as stack:
            client.release()
            (honest,) = connections(port)
            bounded.mark_used(honest.peer)
            opened = [Connection(port) for _ in range(30)]
            for one in opened:
                stack.callback(one.close)
            wait_until(lambda: len(list(connections(port))) == 31)
            assert bounded.enforce_limits() == 0  # all are new: a first call may be on its way
            assert bounded.enforce_limits() == 21
            wait_until(lambda: sum(one.closed.is_set() for one in opened) == 21)
            assert stays_true(lambda: honest.peer in {one.peer for one in connections(port)}, 0.1)
            client.release()
