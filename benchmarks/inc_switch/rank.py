"""One rank of the benchmark: sums a buffer by ring and through the switch, in turn."""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from presage.collectives.switch.client import SwitchClient
from presage.training.synchronous_accumulation import Flags, Ring

RING_PORT = 7100


@dataclass(frozen=True)
class Task:
    """What a rank does.

    Attributes
    ----------
    addresses : list of str
        Of the hosts of all ranks.
    values : int
        float32 values of the buffer.
    repeats : int
        Timed AllReduces of each kind, after one that is not timed.
    """

    rank: int
    addresses: list[str]
    switch_host: str
    switch_port: int
    values: int
    repeats: int

    def to_json(self) -> str:
        """Return the task as text."""
        return json.dumps(asdict(self))


def measure(task: Task) -> dict[str, list[float]]:
    """Return the seconds of each AllReduce, by kind."""
    ring = connect_ring(task)
    client = SwitchClient(
        task.switch_host, task.switch_port,
        job="benchmark", rank=task.rank, ranks=len(task.addresses), epoch=1, token="benchmark",
        timeout_s=60,
    )  # fmt: skip
    found: dict[str, list[float]] = {"ring": [], "switch": []}
    expected = np.float32(sum(range(1, len(task.addresses) + 1)))
    for number in range(task.repeats + 1):
        for kind, times in found.items():
            buffer = np.full(task.values, task.rank + 1, np.float32)
            wait_for_all(ring, number)
            start_s = time.monotonic()
            if kind == "ring":
                ring.all_reduce(buffer, number, Flags())
            else:
                client.all_reduce(buffer, number=number, epoch=1)
            times.append(time.monotonic() - start_s)
            assert (buffer == expected).all()
    wait_for_all(ring, task.repeats + 1)
    time.sleep(0.2)
    return {kind: times[1:] for kind, times in found.items()}


def wait_for_all(ring: Ring, number: int) -> None:
    """Wait until all ranks are here."""
    ring.all_reduce(np.zeros(ring.size, np.float32), number, Flags())


def connect_ring(task: Task) -> Ring:
    """Connect to the neighbours."""
    server = socket.create_server((task.addresses[task.rank], RING_PORT))
    size = len(task.addresses)
    to_next = connect(task.addresses[(task.rank + 1) % size])
    return Ring(task.rank, size, 1, to_next, server.accept()[0])


def connect(address: str) -> socket.socket:
    """Connect to another rank, which may not listen yet."""
    end_s = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, RING_PORT), 5)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))
