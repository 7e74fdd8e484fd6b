"""Cluster pages and metrics port as processes, flooded with connections."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.schedulers.live.ui.stand_in import StandIn, listing, running
from tests.schedulers.live.ui.test_pages import browser
from tests.serving.support.processes import free_port
from tests.support.http_attacks import (
    MOST_MIB,
    Watch,
    half_sent_bodies,
    idle_connections,
    slow_connections,
)

MIB = 2**20
MOST_THREADS = 64 + 30  # of connections, and others of the process
METRICS = """
import sys
from presage.serving.server.prometheus_metrics import Metrics, serve_metrics

serve_metrics(Metrics(), "127.0.0.1", int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


class Server:
    """HTTP server in a process, and the request of an honest client."""

    def __init__(self, url: str, pid: int, ask: Callable[[], int]) -> None:
        self.url, self.pid, self.ask = url, pid, ask


@contextmanager
def metrics() -> Iterator[Server]:
    url = f"http://127.0.0.1:{(port := free_port())}/"
    with subprocess.Popen(
        [sys.executable, "-c", METRICS, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def ask() -> int:
            with urllib.request.urlopen(f"{url}metrics", timeout=20) as answer:
                return int(answer.status)

        try:
            yield Server(url, process.pid, ask)
        finally:
            process.kill()


@contextmanager
def pages() -> Iterator[Server]:
    with StandIn(listing([running("a")])) as stand_in:
        command = [sys.executable, "-m", "presage", "cluster", "ui", "--port", "0"]
        with subprocess.Popen(
            [*command, "--controller", stand_in.target], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            (link,) = re.findall(r"http://127\.0\.0\.1:\d+/\S*", process.stderr.readline())
            asks = browser()

            def ask() -> int:
                with asks.open(link, timeout=20) as answer:
                    return int(answer.status)

            try:
                yield Server(link.partition("?")[0], process.pid, ask)
            finally:
                process.kill()


@pytest.fixture(scope="module", params=[metrics, pages])
def server(request) -> Iterator[Server]:
    with request.param() as found:
        assert found.ask() == 200
        yield found


@pytest.mark.parametrize("attack", [idle_connections, slow_connections])
def test_a_thousand_nearly_idle_connections_do_not_block_other_clients(server, attack):
    with Watch(server.pid) as seen, attack(server.url, 1000):
        for _ in range(5):
            assert server.ask() == 200
    assert seen.added_mib < MOST_MIB
    assert seen.most_threads < MOST_THREADS


@pytest.mark.parametrize("length_mib", [10, 128])
def test_half_sent_bodies_take_little_memory_and_do_not_block_other_clients(server, length_mib):
    with Watch(server.pid) as seen, half_sent_bodies(server.url, "/", 40, length_mib * MIB):
        for _ in range(5):
            assert server.ask() == 200
    assert seen.added_mib < MOST_MIB


def test_an_endless_header_is_rejected(server):
    request = urllib.request.Request(server.url, headers={"X": "a" * 40_000})
    with pytest.raises(urllib.error.HTTPError, match="431"):
        urllib.request.urlopen(request, timeout=20)
