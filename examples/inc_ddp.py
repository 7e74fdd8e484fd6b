"""Train a small model with DDP over the backend presage_inc: the script has nothing special.

Start a switch and an arbiter, then the job; without them all AllReduces run by ring:

    presage inc switch --controlled --port 7200 &
    presage inc arbiter --switch tor=127.0.0.1:7200,mbit=100 &
    PRESAGE_INC_ARBITER=127.0.0.1:7300 torchrun --nproc-per-node 2 examples/inc_ddp.py
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import presage.collectives.torch  # noqa: F401 - registers the backend

STEPS = 200


def main() -> None:
    """Train, and print the loss and how many AllReduces the switch summed."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("presage_inc")
    rank = dist.get_rank()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 1),
    )  # fmt: skip
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        inputs = torch.randn(32, 64)
        loss = torch.nn.functional.mse_loss(wrapped(inputs), inputs[:, :4].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        group: Any = dist.group.WORLD
        counts = group.statistics()
        print(f"{counts['summed']} of {counts['numbered']} AllReduces were summed by the switch")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
