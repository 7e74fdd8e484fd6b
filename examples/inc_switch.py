"""Two jobs at a software switch with one slot: a sum, a refusal, and a rank that ends."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future

import numpy as np

from presage.collectives.switch.client import SwitchClient, statistics
from presage.collectives.switch.errors import SwitchError
from presage.collectives.switch.process import SwitchProcess


def main() -> None:
    """Show what ranks get."""
    with SwitchProcess() as switch:
        kind = "Python" if switch.fallback_reason else "compiled"
        print(f"{kind} aggregator at {switch.host}:{switch.port}, 1 slot")
        first, second = register(switch, "job")
        other, _ = register(switch, "other")
        buffers = [np.full(1_000_000, rank + 1, np.float32) for rank in range(2)]

        waiting = first.start(buffers[0], number=1, epoch=1)  # the job has the slot from now on
        wait_until_slot_is_taken(switch)
        report("job 'other', number 1", other.start(buffers[1].copy(), number=1, epoch=1))
        report("rank 1, number 1", second.start(buffers[1], number=1, epoch=1))
        report("rank 0, number 1", waiting)

        waiting = first.start(buffers[0], number=2, epoch=1)
        wait_until_slot_is_taken(switch)
        second.close()
        report("rank 0, number 2", waiting)
        print(f"the buffer of rank 0 still has the value {buffers[0][0]}")
        first.close()


def register(switch: SwitchProcess, job: str) -> list[SwitchClient]:
    """Register the two ranks of a job; in a real job each is a process of its own."""
    return [
        SwitchClient(switch.host, switch.port, job=job, rank=rank, ranks=2, epoch=1, token=job)
        for rank in range(2)
    ]


def wait_until_slot_is_taken(switch: SwitchProcess) -> None:
    """Wait until the switch works on an AllReduce."""
    while not json.loads(statistics(switch.host, switch.port))["slots_in_use"]:
        time.sleep(0.01)


def report(name: str, waiting: Future[None]) -> None:
    """Print the outcome of an AllReduce."""
    try:
        waiting.result()
        print(f"{name}: summed")
    except SwitchError as error:
        print(f"{name}: {error}")


if __name__ == "__main__":
    main()
