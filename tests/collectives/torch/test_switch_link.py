"""Connection of a rank to its switch, whose address may change at any time."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from presage.collectives.core.messages import Member
from presage.collectives.torch import switch_link
from presage.collectives.torch.switch_link import SwitchLink
from tests.collectives.torch.arbiter import TestAddress


class SlowClient:
    """Client that is connected when the test lets it."""

    made: ClassVar[list[SlowClient]] = []
    may_connect = threading.Event()

    def __init__(self, host, port, **_):
        self.port, self.is_closed = port, False
        self.may_connect.wait(5)
        self.made.append(self)

    def close(self):
        self.is_closed = True


@pytest.fixture
def link(monkeypatch):
    monkeypatch.setattr(switch_link, "SwitchClient", SlowClient)
    monkeypatch.setattr(switch_link, "RETRY_S", 0.0)
    monkeypatch.setattr(SlowClient, "made", [])
    monkeypatch.setattr(SlowClient, "may_connect", threading.Event())
    made = SwitchLink(Member("job", 0, 1), "token")
    yield made
    made.close()


def maintain(link, port):
    link.maintain([TestAddress("s", "host", port)], 1)


def test_a_connection_to_an_address_that_has_changed_meanwhile_is_closed(link):
    maintain(link, 1)
    first = link.connecting
    maintain(link, 2)
    SlowClient.may_connect.set()
    first.join(5)

    assert not link.is_connected
    assert SlowClient.made[0].is_closed

    maintain(link, 2)
    link.connecting.join(5)
    assert link.is_connected
    assert [client.port for client in SlowClient.made] == [1, 2]


def test_a_connection_of_a_link_that_was_closed_meanwhile_is_closed(link):
    maintain(link, 1)
    link.close()
    SlowClient.may_connect.set()
    link.connecting.join(5)

    assert not link.is_connected
    assert SlowClient.made[0].is_closed
