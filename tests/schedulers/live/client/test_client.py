"""Tests of the client's errors with missing and failing controllers."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from presage.errors import (
    JournalError,
    NotYetError,
    PresageError,
    ServiceError,
    UnauthenticatedError,
)
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.controller.server.cluster_service import ClusterService
from presage.serving.client.credentials import Credentials
from presage.serving.server.call import Calls
from presage.serving.server.prometheus_metrics import Metrics


class FailingController:
    """Controller service whose methods all fail."""

    def __init__(self, error: PresageError) -> None:
        self.error = error

    async def read_in_thread(self, at):
        raise self.error

    async def stream(self, request, check):
        for error in [self.error]:
            raise error
        yield b""


def call_failing(error: PresageError, call) -> None:
    """Call a controller that always fails; ``call`` gets a client and its target."""
    failing: Any = FailingController(error)

    def in_thread(target: str) -> None:
        with ClusterClient(target) as client:
            call(client, target)

    async def main() -> None:
        server = grpc.aio.server()
        calls = Calls(Metrics(), anonymous_roles=frozenset({"view"}))
        service = ClusterService(failing, calls, failing, "fifo")
        server.add_generic_rpc_handlers((service.handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.to_thread(in_thread, f"127.0.0.1:{port}")
        finally:
            await server.stop(None)

    asyncio.run(main())


@pytest.mark.parametrize("method", ["list", "logs"])
def test_a_failing_controller_is_not_reported_as_missing(method):
    def call(client, target):
        with pytest.raises(ServiceError) as caught:
            list(client.logs("job")) if method == "logs" else client.list()
        assert str(caught.value) == f"{target}: the disk is full; make room"

    call_failing(JournalError("the disk is full; make room"), call)


def test_a_missing_log_is_not_reported_as_a_controller_failure():
    def call(client, target):
        with pytest.raises(NotYetError, match=r"^job 'a' has not run yet$"):
            list(client.logs("a"))

    call_failing(NotYetError("job 'a' has not run yet"), call)


def test_a_port_without_a_server_is_reported_as_a_missing_controller():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{other.getsockname()[1]}"
        missing = pytest.raises(ServiceError, match=f"no controller at {target}")
        with ClusterClient(target, timeout_s=20.0) as client, missing:
            client.list()


@pytest.mark.parametrize(
    ("token", "expected"),
    [("", "requires authentication; pass --token-file FILE"), ("wrong", "the token is not known")],
)
def test_a_missing_token_error_names_the_option(token, expected):
    error = UnauthenticatedError("the token is not known to this server")
    shown = Credentials(token=token)

    def call(_, target):
        refused = pytest.raises(UnauthenticatedError, match=expected)
        with ClusterClient(target, credentials=shown) as client, refused:
            client.list()

    call_failing(error, call)


def test_another_service_is_not_mistaken_for_a_controller():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    other = pytest.raises(
        ServiceError, match=f"the service at .*:{port} is no controller of a cluster"
    )
    try:
        with ClusterClient(f"127.0.0.1:{port}") as client, other:
            client.list()
    finally:
        server.stop(None)
