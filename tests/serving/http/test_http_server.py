"""Bounded HTTP server over real sockets: eviction and time-outs of connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from presage.serving.http.connection import HttpLimits
from presage.serving.http.http_server import BoundedHandler, BoundedServer, WsgiServer
from presage.serving.http.open_connections import peer_key

GET = b"GET / HTTP/1.1\r\n\r\n"
LIMITS = HttpLimits(connections=8, per_peer=6, head_s=30.0)


class Application:
    """Application that responds with a number of bytes once it is released."""

    def __init__(self, length: int = 2) -> None:
        self.length = length
        self.asked, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()

    def __call__(self, environ, start_response):
        self.asked.release()
        assert self.go_on.wait(30)
        start_response("200 OK", [("Content-Length", str(self.length))])
        return [b"x" * self.length]


@contextmanager
def serving(application=None, limits=LIMITS) -> Iterator[int]:
    """Run a server and yield its port."""
    server = WsgiServer(("127.0.0.1", 0), application or Application(), limits=limits)
    try:
        yield server.port
    finally:
        server.stop()


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def answer(connection):
    connection.sendall(GET)
    return connection.recv(100)


def is_open(connection):
    connection.settimeout(0.2)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_the_oldest_connection_of_the_busiest_peer_is_closed_first():
    with serving() as port, ExitStack() as stack:
        honest = stack.enter_context(connect(port))
        flood = [stack.enter_context(connect(port, "127.0.0.2")) for _ in range(40)]
        assert [is_open(one) for one in flood] == [False] * 34 + [True] * 6
        assert answer(honest).startswith(b"HTTP/1.0 200")


def test_the_oldest_connection_of_many_peers_is_closed_first():
    with serving() as port, ExitStack() as stack:
        flood = [stack.enter_context(connect(port, f"127.0.0.{i}")) for i in range(2, 22)]
        assert [is_open(one) for one in flood] == [False] * 12 + [True] * 8
        with connect(port) as honest:
            assert answer(honest).startswith(b"HTTP/1.0 200")


def test_active_requests_are_not_closed_and_another_one_gets_retry_after():
    application = Application()
    application.go_on.clear()
    with serving(application) as port, ExitStack() as stack:
        working = [stack.enter_context(connect(port)) for _ in range(6)]
        for one in working:
            one.sendall(GET)
            assert application.asked.acquire(timeout=10)
        with connect(port) as more:
            assert more.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1")
        application.go_on.set()
        assert all(one.recv(100).startswith(b"HTTP/1.0 200") for one in working)


def test_a_response_that_is_not_read_is_ended():
    limits = HttpLimits(send_s=0.5)
    with serving(Application(50_000_000), limits) as port, connect(port) as client:
        client.sendall(GET)
        time.sleep(2.0)
        client.settimeout(10)
        taken = 0
        with pytest.raises(ConnectionError):
            while part := client.recv(2**20):
                taken += len(part)
            raise ConnectionError  # ended without a reset
        assert taken < 50_000_000


def test_a_head_that_arrives_byte_by_byte_is_ended():
    with serving(limits=HttpLimits(head_s=0.5)) as port, connect(port) as client:
        began_s = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began_s < 20:
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - began_s < 10


def test_a_network_of_ipv6_counts_as_one_peer():
    assert (
        peer_key("2001:db8::1") == peer_key("2001:db8::ffff:1%eth0") != peer_key("2001:db8:0:1::1")
    )
    assert peer_key("::ffff:10.0.0.1") == peer_key("10.0.0.1") != peer_key("10.0.0.2")


def test_a_head_that_ends_early_is_not_a_request():
    application = Application()
    with serving(application) as port, connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert not application.asked.acquire(blocking=False)


def test_a_port_is_shared_only_on_request():
    with serving() as port:
        for shared in (False, True):
            with pytest.raises(OSError, match="in use"):
                BoundedServer(
                    ("127.0.0.1", port), BoundedHandler, limits=LIMITS, shared_port=shared
                )
    servers = [
        BoundedServer(("127.0.0.1", port), BoundedHandler, limits=LIMITS, shared_port=True)
        for _ in range(2)
    ]
    for server in servers:
        server.server_close()
