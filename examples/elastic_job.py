"""Training job whose number of workers may change while it runs.

Start it with two workers, and change that from another terminal::

    presage elastic run --workers 2 spirals python examples/elastic_job.py
    presage elastic resize spirals 3
    presage elastic status spirals

It also runs without ``presage elastic``, as one worker.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional

from presage.training import elastic


def main() -> None:
    """Train a classifier of two spirals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds to add to each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = spirals(2048)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
        torch.nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    run = elastic.begin(model, optimizer, samples=len(x), batch=128)
    for step in run.steps(epochs=args.epochs):
        time.sleep(args.step_s)
        loss = functional.binary_cross_entropy_with_logits(model(x[step.indices]), y[step.indices])
        loss.backward()  # type: ignore[no-untyped-call]
        run.apply(loss)
        if step.is_last_of_epoch and step.epoch % 5 == 4 and run.rank == 0:
            print(f"epoch {step.epoch + 1}: loss {run.loss:.4f}, workers: {run.size}", flush=True)


def spirals(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of two spirals, of shape (samples, 2), and their classes, (samples, 1)."""
    generator = torch.Generator().manual_seed(1)
    turn = torch.rand(samples, 1, generator=generator) * 1.5
    kind = (torch.arange(samples) % 2).unsqueeze(1).float()
    angle = 2 * torch.pi * turn + torch.pi * kind
    points = torch.cat([turn * torch.cos(angle), turn * torch.sin(angle)], dim=1)
    return points + 0.05 * torch.randn(samples, 2, generator=generator), kind


if __name__ == "__main__":
    main()
