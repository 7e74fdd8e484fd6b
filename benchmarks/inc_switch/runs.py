"""Runs of the benchmark: all ranks of a job, in namespaces around the switch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

from benchmarks.inc_switch.rank import Task
from presage.collectives.star_network import StarNetwork, star_network
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import Implementation, SwitchProcess

CASES: tuple[tuple[int, float, Implementation], ...] = (
    *((ranks, rate, "c") for rate in (50.0, 200.0) for ranks in (2, 3, 4)),
    *((4, rate, "python") for rate in (50.0, 200.0)),
)
SECONDS_OF_INC = 2.0  # of an AllReduce through the switch, by the law: other costs are small


class Row(NamedTuple):
    """Medians over the repeats; a repeat takes as long as its slowest rank.

    Attributes
    ----------
    ring_s, switch_s : list of float
        Seconds of each repeat.
    load : list of float
        Load average of the machine before and after.
    """

    ranks: int
    mbit_per_s: float
    megabytes: float
    implementation: str
    ring_s: list[float]
    switch_s: list[float]
    load: list[float]

    @property
    def ratio(self) -> float:
        """Median time of the ring over that of the switch."""
        return statistics.median(self.ring_s) / statistics.median(self.switch_s)

    @property
    def law(self) -> float:
        """Ratio by the costs of I9 without latency: 2 (N - 1) / N."""
        return 2 * (self.ranks - 1) / self.ranks

    @property
    def law_of_switch_s(self) -> float:
        """Time of the switch by the costs of I9 without latency, in seconds."""
        return self.megabytes * 8 / self.mbit_per_s


def run(ranks: int, mbit_per_s: float, implementation: Implementation, *, repeats: int) -> Row:
    """Measure one number of ranks at one rate of the links."""
    before = os.getloadavg()[0]
    values = int(SECONDS_OF_INC * mbit_per_s * 1e6 / 32)
    with star_network(ranks, mbit_per_s) as network:
        options = SwitchOptions(host=network.hub_address, lease_ms=60_000)
        prefix = network.hub_prefix()
        with SwitchProcess(options, implementation=implementation, prefix=prefix) as switch:
            found = run_ranks(network, switch, values, repeats)
    slowest = {
        kind: [max(times) for times in zip(*(one[kind] for one in found), strict=True)]
        for kind in ("ring", "switch")
    }
    made = "pure Python" if switch.fallback_reason else "C"
    load = [before, os.getloadavg()[0]]
    size = values * 4e-6
    return Row(ranks, mbit_per_s, size, made, slowest["ring"], slowest["switch"], load)


def run_ranks(
    network: StarNetwork, switch: SwitchProcess, values: int, repeats: int
) -> list[dict[str, list[float]]]:
    """Run a process of each rank at its host; return what they measured."""
    addresses = [network.address(host) for host in range(network.hosts)]
    processes = []
    for rank in range(network.hosts):
        task = Task(rank, addresses, network.hub_address, switch.port, values, repeats)
        words = [sys.executable, "-m", "benchmarks.inc_switch.rank", task.to_json()]
        process = subprocess.Popen(
            [*network.host_prefix(rank), *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
    try:
        return [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
