"""Connections between ranks: addresses, and messages that take long."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from presage.collectives.core.messages import Vote
from presage.collectives.torch.peers import connections
from presage.collectives.torch.peers.address import own_address
from presage.collectives.torch.peers.connections import Peers
from presage.collectives.torch.peers.messages import Ballot
from tests.support.waiting import wait_until

TOKEN = "0" * 32
SUM_BYTES = 24 << 20


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


class SlowPeers(Peers):
    """Connections that take their time for each part of a message."""

    def _read(self, peer):
        time.sleep(0.06)
        return super()._read(peer)


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


@pytest.fixture
def connect():
    """Return the connections of two ranks that handle messages as the test wants."""
    found: list[Peers] = []

    def start(*on_message, kind=Peers):
        store = HashStore()
        store.set_timeout(timedelta(seconds=5))

        def join(rank):
            return kind(
                store, rank, 2, token=TOKEN, timeout_s=5.0,
                on_message=on_message[rank], on_loss=lambda rank: None,
            )  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            found.extend(pool.map(join, range(2)))
        return found

    yield start
    for peers in found:
        peers.close()


def ignore(rank, message):
    pass


@needs_ipv6
def test_ranks_reach_each_other_by_ipv6(connect, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "::1")
    received = threading.Event()

    first, _ = connect(ignore, lambda rank, message: received.set())
    first.send(1, Ballot(Vote("job", 0, 1, 0, None), 4))

    assert own_address() == "::1"
    assert received.wait(5)


@needs_ipv6
def test_without_the_address_of_a_master_the_host_name_counts(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "::1")

    assert own_address() == "::1"


def test_a_machine_without_any_name_has_the_loopback_address(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.name.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: raise_unknown())

    assert own_address() == "127.0.0.1"


def raise_unknown():
    raise socket.gaierror(-2, "unknown name")


def test_the_address_of_an_interface_is_used_and_an_unknown_one_is_an_error(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none9")
    with pytest.raises(OSError, match="No such device"):
        own_address()


def test_a_large_sum_has_the_time_out_for_each_part_only(connect, monkeypatch):
    monkeypatch.setattr(connections, "SEND_S", 0.5)
    monkeypatch.setattr(connections, "READ_BYTES", 1 << 20)
    received = []
    first, _ = connect(ignore, lambda rank, message: received.append(message), kind=SlowPeers)
    data = np.arange(SUM_BYTES // 4, dtype=np.float32).tobytes()
    begin_s = time.monotonic()

    first.send(1, Ballot(Vote("job", 0, 1, 7, 3), SUM_BYTES, data))

    assert time.monotonic() - begin_s > 0.5
    assert first.lost == []
    wait_until(lambda: received, 20)
    assert received[0].data == data
