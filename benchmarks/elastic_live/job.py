"""Training job of benchmarks/elastic_live, whose steps take as long as a measured model's.

Its processes, its gradients' sums and its resizes are real; its devices are emulated. The model is
tiny, and after each step a worker sleeps until the measured time of a step on its number of devices
and nodes is over. That time contains the computation and the communication of the measured model,
so the tiny model's own are part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.elastic_live.devices import BATCH, NODES
from presage.training import elastic

WIDTH = 4


def main() -> None:
    """Train the tiny model for a number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="devices of a job of a fixed size")
    parser.add_argument("--steps", required=True, help="JSON: seconds of a step by DEVICES,NODES")
    parser.add_argument("--startup-s", type=float, default=0.0, help="least age to join")
    parser.add_argument("--record", type=Path, required=True, help="file of its generations")
    args = parser.parse_args()
    began_unix_s = time.time()
    steps_s = {tuple(map(int, size.split(","))): s for size, s in json.loads(args.steps).items()}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = NodeCounter(node_number())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer.register_step_pre_hook(model.count_nodes)
    time.sleep(max(0.0, args.startup_s - process_age_s()))
    run = elastic.begin(model, optimizer, samples=BATCH * args.iterations, batch=BATCH)
    generation, due_s, is_new = 0, 0.0, True
    for step in run.steps(epochs=1):
        if run.generation != generation:
            generation, due_s, is_new = run.generation, time.monotonic(), True
        x = torch.as_tensor(step.indices % WIDTH).float().unsqueeze(1).expand(-1, WIDTH)
        loss = model(x)
        loss.backward()
        run.apply(loss)
        size = args.gpus or run.size, min(model.nodes, args.gpus or run.size)
        if is_new and run.rank == 0:
            is_new = False
            _record(args.record, began_unix_s=began_unix_s, step=step.number, size=size)
        due_s += steps_s[size]
        time.sleep(max(0.0, due_s - time.monotonic()))
    if run.rank == 0:
        _record(args.record, began_unix_s=began_unix_s, step=args.iterations, size=(0, 0))


class NodeCounter(torch.nn.Module):
    """Tiny model; the gradient of one parameter shows on which nodes its workers are.

    Attributes
    ----------
    nodes : int
        Number of nodes of the last step.
    """

    def __init__(self, node: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, 1)
        self.at_node = torch.nn.Parameter(torch.zeros(NODES))
        self.nodes = 1
        self._node = node

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return torch.mean(self.linear(x) ** 2) + self.at_node[self._node]

    def count_nodes(self, *_: Any) -> None:
        """Count the nodes by the summed gradient; called before the optimizer's step."""
        assert self.at_node.grad is not None
        self.nodes = int((self.at_node.grad > 0).sum())


def process_age_s() -> float:
    """Return the seconds since this process was started."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def node_number() -> int:
    """Return the number of this worker's node: the last digit of its agent's state folder."""
    return int(Path(os.environ["PRESAGE_STATE"]).name[-1])


def _record(path: Path, **row: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"unix_s": time.time(), **row}) + "\n")


if __name__ == "__main__":
    main()
