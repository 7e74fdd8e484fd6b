"""Tests of disconnections between controller and agent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import local_token_path
from tests.schedulers.live.cluster import PRESAGE, LiveCluster, until
from tests.schedulers.live.faults.network import CONTROLLER, Network
from tests.support.slow_tests import all_faults

LEASE_S = 4.0


@pytest.fixture
def cut_off(wire: Network, tmp_path: Path) -> Iterator[LiveCluster]:
    """Cluster with node n0 behind the link, node n1 local, and a job on n0."""
    cluster = LiveCluster(tmp_path, lease_s=LEASE_S, host=CONTROLLER)
    try:
        cluster.controller()
        cluster.agent("n0", by=(*wire.by, *PRESAGE, "agent"))
        cluster.connected("n0")
        cluster.submit(cluster.job("long", 300, 0.05, 0, grace_s=2.0))
        cluster.runs("long", beyond=10)
        cluster.agent("n1")
        cluster.connected("n0", "n1")
        yield cluster
    finally:
        cluster.close()


@all_faults
def test_a_short_disconnection_changes_nothing(cut_off, wire):
    for _ in range(2):
        wire.cut("controller", "agent")
        time.sleep(0.3 * LEASE_S)
        wire.heal()
        time.sleep(0.5 * LEASE_S)

    assert cut_off.over("long") == {"long": pb.FINISHED}
    cut_off.check(run_once=["long"])


@pytest.mark.parametrize(
    "sides",
    [
        ("agent",),
        pytest.param(("controller",), marks=all_faults),
        pytest.param(("controller", "agent"), marks=all_faults),
    ],
)
def test_a_long_disconnection_moves_a_job_with_its_checkpoint(cut_off, wire, sides):
    wire.cut(*sides)

    again = cut_off.runs("long", attempt=2)
    assert again.number > 10
    wire.heal()
    cut_off.connected("n0", "n1")

    assert cut_off.over("long") == {"long": pb.FINISHED}
    assert (cut_off.status("long").attempt, cut_off.status("long").node) == (2, "n1")
    cut_off.check()
    tasks = cut_off.folder / "n0" / "tasks"
    until(lambda: not list(tasks.glob("[!.]*")), what="n0 has forgotten the attempt it lost")


@all_faults
def test_a_disconnection_during_a_controller_restart_starts_nothing_twice(cut_off, wire):
    wire.cut("controller", "agent")
    cut_off.kill("controller")
    cut_off.controller()
    cut_off.submit(cut_off.job("next", 20, 0.05))
    time.sleep(0.5 * LEASE_S)
    wire.heal()

    assert set(cut_off.over("long", "next").values()) == {pb.FINISHED}
    cut_off.check()


class Far:
    """Proxy that forwards data with a delay, in a thread per direction."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._to, self._delay_s = port, delay_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._hand_on, args=(source, target), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                time.sleep(self._delay_s)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listening.close()


@all_faults
def test_an_agent_with_high_latency_can_connect(cluster):
    cluster.controller()
    until(lambda: [cluster.all()])
    far = Far(cluster.port, 0.3)
    token = local_token_path(cluster.port)  # agents cannot find it at another port
    cluster.agent("n0", "--controller", f"127.0.0.1:{far.port}", "--token-file", token)

    cluster.connected("n0")
    cluster.submit(cluster.job("a", 5))
    assert cluster.over("a") == {"a": pb.FINISHED}
    far.close()
