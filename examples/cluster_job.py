"""Training job for a live cluster that reports its progress and saves checkpoints on request.

Submit it with::

    presage cluster submit --iterations 500 --checkpoint-every-s 20 -- \
      python examples/cluster_job.py resnet/w16-d8/b8/sgd --iterations 500

It also runs without a cluster. ``--input-wait-s`` is the time that a step waits for its samples, as
from a slow disk: then the job uses only a part of its device.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo import build, parse
from presage.schedulers.live import job_progress as progress

SAVE_EVERY_S = 20.0


def main() -> None:
    """Train from the last checkpoint on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("config", help="a job of the zoo, such as resnet/w16-d8/b8/sgd")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--input-wait-s", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    run = progress.begin(args.iterations)
    job = build(parse(args.config))
    if run.first and run.checkpoint_folder is not None:
        restore(job, run.checkpoint_folder / "model.pt")
    saved_s = time.monotonic()
    for done in range(run.first + 1, args.iterations + 1):
        if args.input_wait_s:
            time.sleep(args.input_wait_s)
        job.run()
        run.step(done)
        due = run.checkpoint_requested or time.monotonic() - saved_s > SAVE_EVERY_S
        if due and run.checkpoint_folder is not None:
            save(job, run.checkpoint_folder / "model.pt")
            run.saved(done)
            saved_s = time.monotonic()


def save(job: TrainingStep, path: Path) -> None:
    """Write the weights atomically, and to the disk before the checkpoint is reported."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save([module.state_dict() for module in job.modules], file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def restore(job: TrainingStep, path: Path) -> None:
    """Load the weights of an earlier attempt."""
    for module, state in zip(job.modules, torch.load(path, weights_only=True), strict=True):
        module.load_state_dict(state)


if __name__ == "__main__":
    main()
