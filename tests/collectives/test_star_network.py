"""Emulated hosts around a hub: rates, cut links, cleaning up, and what is missing without root."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from presage.collectives.star_network import (
    NetworkUnavailableError,
    StarNetwork,
    check_network,
    remove_abandoned,
    star_network,
)
from presage.collectives.switch.errors import RankLostError
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess

SUM = """
import sys, numpy
from presage.collectives.switch.client import SwitchClient
from presage.collectives.switch.errors import SwitchError
host, port, rank, values = sys.argv[1], *map(int, sys.argv[2:])
client = SwitchClient(host, port, job="job", rank=rank, ranks=2, epoch=1, token="t", timeout_s=20)
buffer = numpy.ones(values, numpy.float32)
print("registered", flush=True)
input()
try:
    client.all_reduce(buffer, number=1, epoch=1)
    print("sum", buffer.min(), buffer.max(), flush=True)
except SwitchError as error:
    print(type(error).__name__, buffer.min(), buffer.max(), flush=True)
"""


@pytest.fixture
def network():
    try:
        with star_network(hosts=2, mbit_per_s=50) as made:
            yield made
    except NetworkUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def switch(network):
    options = SwitchOptions(host=network.hub_address, lease_ms=1000)
    with SwitchProcess(options, prefix=network.hub_prefix()) as started:
        yield started


class Rank:
    """Process of a rank at a host."""

    def __init__(self, network, switch, rank, values):
        arguments = map(str, (network.hub_address, switch.port, rank, values))
        self.process = subprocess.Popen(
            [*network.host_prefix(rank), sys.executable, "-c", SUM, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.line() == "registered"

    def begin(self):
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self):
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_ranks(network, switch):
    ranks: list[Rank] = []

    def start(values):
        ranks.extend(Rank(network, switch, rank, values) for rank in range(2))
        return ranks

    yield start
    for rank in ranks:
        rank.end()


def test_links_have_their_rate(start_ranks):
    ranks = start_ranks(1_500_000)  # 6 MB: 0.96 s at 50 Mbit/s
    start_s = time.monotonic()
    for rank in ranks:
        rank.begin()

    assert [rank.line() for rank in ranks] == ["sum 2.0 2.0"] * 2
    assert 0.96 <= time.monotonic() - start_s < 5


def test_partitioned_rank_is_lost_for_the_others_after_the_lease(network, start_ranks):
    ranks = start_ranks(5_000_000)  # 3.2 s
    for rank in ranks:
        rank.begin()
    cut = threading.Timer(0.5, network.cut, (1,))
    cut.start()
    start_s = time.monotonic()

    assert ranks[0].line() == f"{RankLostError.__name__} 1.0 1.0"

    assert time.monotonic() - start_s < 10
    cut.join()
    network.heal(1)
    assert ranks[1].line().endswith(" 1.0 1.0")  # it has an error, and its buffer


def test_namespaces_are_removed_also_after_a_kill(network):
    names = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert f"presage-inc-{os.getpid()}-hub" in names.stdout
    dead = 2**22 + 1  # above the highest process id of Linux
    subprocess.run(["ip", "netns", "add", f"presage-inc-{dead}-hub"], check=True)

    remove_abandoned()
    network.remove()

    names = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert f"presage-inc-{os.getpid()}-" not in names.stdout
    assert f"presage-inc-{dead}-" not in names.stdout


def test_without_root_or_commands_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(NetworkUnavailableError) as caught:
        check_network()

    assert str(caught.value) == (
        "an emulated network needs root (run it with sudo) and the command 'ip' (iproute2) and "
        "the command 'tc' (iproute2)"
    )


@pytest.mark.parametrize(("hosts", "rate"), [(0, 50), (65, 50), (2, 0), (2, float("nan"))])
def test_impossible_networks_are_rejected(hosts, rate):
    with pytest.raises(ValueError, match=r"must be|out of range"):
        StarNetwork(hosts, rate)
