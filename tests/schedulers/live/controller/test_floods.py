"""Tests of a controller that is flooded by clients without a token."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from presage.errors import UnauthenticatedError
from presage.schedulers.live.client.client import ClusterClient
from tests.schedulers.live.controller.users import DEVICE, Users
from tests.serving.support.floods import MIB, growth_under_unfinished_bytes
from tests.serving.support.http2 import Connection

pytestmark = pytest.mark.timeout(240)
CLUSTER, NODE = "/presage.cluster.v1.ClusterService", "/presage.cluster.v1.NodeService"
WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture
def users(tmp_path):
    users = Users(tmp_path)
    yield users
    users.stop()


@pytest.mark.parametrize("method", [f"{CLUSTER}/Submit", f"{NODE}/Attach", WATCH])
def test_messages_of_60_mib_that_never_end_take_little_memory(users, method):
    with users.client("ann") as ann:
        grown_bytes = growth_under_unfinished_bytes(
            users.process.pid, users.port, ann.list, method=method, connections=40, messages=40,
            message_bytes=60 * MIB,
        )  # fmt: skip
    assert grown_bytes < 150 * MIB


@pytest.mark.parametrize("method", [f"{CLUSTER}/Submit", f"{CLUSTER}/Watch"])
def test_the_maximum_number_of_messages_takes_little_memory(users, method):
    with users.client("ann") as ann:
        grown_bytes = growth_under_unfinished_bytes(
            users.process.pid, users.port, ann.list, method=method
        )
    assert grown_bytes < 150 * MIB


def test_anonymous_clients_cannot_fill_the_memory(tmp_path):
    users = Users(tmp_path, with_tokens=False)
    with users.client("") as client:
        for method in (f"{CLUSTER}/List", f"{CLUSTER}/Watch"):
            grown_bytes = growth_under_unfinished_bytes(
                users.process.pid, users.port, client.list, method=method
            )
            assert grown_bytes < 150 * MIB
    users.stop()


def test_idle_calls_block_neither_users_nor_nodes(users):
    with (
        users.agent("n0", "n0", DEVICE) as agent,
        users.client("ann") as ann,
        ExitStack() as stack,
    ):
        for _ in range(12):
            one = Connection(users.port)
            stack.callback(one.close)
            for position in range(250):
                stream = one.call((f"{CLUSTER}/Submit", f"{NODE}/Attach", WATCH)[position % 3])
                if position % 3 == 2:
                    one.message(stream, 0, 0)
        ann.submit([users.job("a")])
        agent.commands_for("a")
        assert not ann.list().nodes[0].reason


def test_users_without_a_token_are_rejected(users):
    with ClusterClient(users.target) as client, pytest.raises(UnauthenticatedError):
        client.list()
