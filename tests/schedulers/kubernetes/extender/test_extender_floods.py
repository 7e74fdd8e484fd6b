"""Resource limits of an extender process under floods of requests."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.serving.authentication.token_file import add_token
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod
from tests.schedulers.kubernetes.test_kubernetes_cli import presage
from tests.support.http_attacks import (
    MOST_MIB,
    Watch,
    connect,
    half_sent_bodies,
    idle_connections,
    memory_mib,
    slow_connections,
    until,
)

MIB = 2**20
NAMES = ["n0", "n1"]


class RunningExtender:
    """Running extender process."""

    def __init__(self, process: subprocess.Popen[str], token: str) -> None:
        self.url = process.first_line.split()[-1]  # type: ignore[attr-defined]
        self.pid, self.token = process.pid, token

    def filter(self) -> list[str]:
        """Send a valid request; return the nodes that pass."""
        body = json.dumps({"Pod": pod("new", gpus=1), "NodeNames": NAMES}).encode()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.url + "/filter", body, headers)
        with urllib.request.urlopen(request, timeout=20) as response:
            return list(json.load(response)["NodeNames"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("extender")
    (folder / "token").write_text(add_token(folder / "tokens", "kube-scheduler", ["bind"]))
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        for name in NAMES:
            server.create("nodes", node(name, gpus=4))
        (folder / "kubeconfig").write_text(yaml.safe_dump(server.kubeconfig()))
        yield folder


ANONYMOUS = pytest.mark.parametrize("extender", ["anonymous"], indirect=True)


@pytest.fixture(params=["anonymous", "tokens"])
def extender(folder, request) -> Iterator[RunningExtender]:
    token = (folder / "token").read_text() if request.param == "tokens" else ""
    options = ["--tokens", str(folder / "tokens")] if token else []
    with presage(folder, "extender", "--port", "0", *options) as process:
        running = RunningExtender(process, token)
        running.filter()  # once, before memory is read
        yield running


@ANONYMOUS
@pytest.mark.parametrize("length_mib", [4, 128])
def test_ten_incomplete_bodies_take_little_memory_and_do_not_block_others(extender, length_mib):
    with (
        Watch(extender.pid) as usage,
        half_sent_bodies(extender.url, "/filter", 10, length_mib * MIB),
        half_sent_bodies(extender.url, "/bind", 10, length_mib * MIB),
    ):
        for _ in range(5):
            assert extender.filter() == NAMES
    assert usage.added_mib < MOST_MIB


def test_many_incomplete_bodies_give_way_to_a_complete_one(extender):
    with Watch(extender.pid) as usage, half_sent_bodies(extender.url, "/filter", 80, 4 * MIB):
        for _ in range(5):
            assert extender.filter() == NAMES
    assert usage.added_mib < MOST_MIB


@ANONYMOUS
@pytest.mark.parametrize("unit", [b'{"a":1},', b"[],", b"{},", b'"\\ud83d ",'])
def test_many_small_json_values_take_little_memory(extender, unit):
    content = b'{"Pod":[' + unit * (4 * MIB // len(unit) - 10) + b"0]}"
    head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with Watch(extender.pid) as usage:
        connections = [connect(extender.url) for _ in range(10)]
        for one in connections:
            one.settimeout(10)
            try:
                one.sendall(head + content)
            except OSError:
                continue
        for one in connections:
            try:
                one.recv(100)
            except OSError:
                continue
            finally:
                one.close()
        assert extender.filter() == NAMES
    assert usage.added_mib < MOST_MIB


@pytest.mark.parametrize("attack", [idle_connections, slow_connections])
def test_a_thousand_idle_connections_do_not_block_others(extender, attack):
    with Watch(extender.pid) as usage, attack(extender.url, 1000):
        for _ in range(5):
            assert extender.filter() == NAMES
    assert usage.added_mib < MOST_MIB
    assert usage.most_threads < 150


def test_memory_of_authenticated_requests_is_bounded_and_released(folder):
    token = (folder / "token").read_text()
    with presage(folder, "extender", "--port", "0", "--tokens", str(folder / "tokens")) as process:
        extender = RunningExtender(process, token)
        extender.filter()
        headers = f"Authorization: Bearer {token}\r\n"
        with (
            Watch(extender.pid) as usage,
            half_sent_bodies(extender.url, "/filter", 40, 32 * MIB, headers=headers),
        ):
            assert extender.filter() == NAMES
        assert usage.added_mib < 640
        until(
            lambda: memory_mib(extender.pid) < usage.idle_mib + MOST_MIB, "memory is not released"
        )
