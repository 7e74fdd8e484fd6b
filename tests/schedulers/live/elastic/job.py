"""Program of an elastic job, whose workers write the steps that they commit to a file.

    python job.py STEPS EPOCHS SAMPLE_S [HOW]

A step lasts SAMPLE_S seconds for each sample of a worker, so that more workers are faster, until
the file STEPS.hurry exists. HOW is "fails:FILE": it ends with status 3 where the agent's state
folder has FILE. Each line of STEPS is a JSON object: task, generation, step and its samples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from presage.training import elastic
from presage.training.job_folder import STATE_VARIABLE

SAMPLES, BATCH, SEED = 96, 12, 7


class PlainOptimizer:
    """Gradient descent without state; torch's own optimizers import for seconds."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": 0.01}]

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=0.01)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def main() -> None:
    steps, epochs, sample_s, *how = sys.argv[1:]
    for word in how:
        kind, _, name = word.partition(":")
        # The agent's state folder has tasks/TASK/elastic, in which the address of the leader is.
        if kind == "fails" and (Path(os.environ[STATE_VARIABLE]).parents[2] / name).exists():
            sys.exit(3)
    written = os.open(steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(5))
    optimizer: Any = PlainOptimizer(model.parameters())
    interval_s = float(os.environ.get("TEST_CHECKPOINT_S", "60"))
    run = elastic.begin(
        model, optimizer, samples=SAMPLES, batch=BATCH, seed=SEED, checkpoint_interval_s=interval_s
    )
    for step in run.steps(epochs=int(epochs)):
        if not Path(f"{steps}.hurry").exists():
            time.sleep(float(sample_s) * len(step.indices))
        loss = model(x[step.indices]).square().mean()
        loss.backward()
        generation = run.generation
        if run.apply(loss):
            row = {
                "task": os.environ["PRESAGE_TASK"], "pid": os.getpid(), "generation": generation,
                "step": step.number, "samples": step.indices.tolist(),
            }  # fmt: skip
            os.write(written, f"{json.dumps(row)}\n".encode())


if __name__ == "__main__":
    main()
