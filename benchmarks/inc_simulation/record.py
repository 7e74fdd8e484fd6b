"""Recorder of AllReduces of real DDP jobs on gloo: times and sizes, as a rank observes them.

Run ``python -m benchmarks.inc_simulation.record FOLDER``: about 3 minutes. It writes one csv file a
job with the columns ``number``, ``start_s`` and ``size_bytes``. Jobs have two ranks on this
machine's processor; those with a ``device_s`` wait as for a device that computes the forward pass.
"""

# No postponed annotations: DDP reads those of the hook.
import argparse
import csv
import itertools
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


class Recipe(NamedTuple):
    """Job to record.

    ``accumulate`` micro-batches make an optimizer step; with ``no_sync`` only the last one is
    synchronized. Every ``pause_every`` steps all ranks evaluate for 0.5 s.
    """

    name: str
    model: str
    batch: int
    bucket_mb: float = 1.0
    device_s: float = 0.0
    accumulate: int = 1
    no_sync: bool = False
    pause_every: int = 0


RECIPES = (
    Recipe("mlp", "mlp", 32, device_s=0.1),
    Recipe("convolutions", "convolutions", 32),
    Recipe("transformer", "transformer", 16),
    Recipe("transformer_pauses", "transformer", 4, device_s=0.1, pause_every=30),
    Recipe("mlp_no_sync", "mlp", 32, device_s=0.05, accumulate=4, no_sync=True),
    Recipe("mlp_accumulated", "mlp", 32, device_s=0.05, accumulate=3),
    Recipe("equal_sizes", "equal", 256, bucket_mb=0.5, device_s=0.1),
    Recipe("one_bucket", "convolutions", 32, bucket_mb=100.0),
)
STEPS = 100


def main() -> None:
    """Record all jobs, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inc_simulation.record")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for port, recipe in enumerate(RECIPES, 29611):
        spawn(_train, (recipe, port, folder), nprocs=2)


def _train(rank: int, recipe: Recipe, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, sample = _model(recipe)
    model = DistributedDataParallel(net, bucket_cap_mb=recipe.bucket_mb)
    rows: list[tuple[int, float, int]] = []
    model.register_comm_hook(None, _recording_hook(rows))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for part in range(recipe.accumulate):
            is_last = part == recipe.accumulate - 1
            quiet = model.no_sync() if recipe.no_sync and not is_last else nullcontext()
            with quiet:
                time.sleep(recipe.device_s)
                model(sample).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if recipe.pause_every and step % recipe.pause_every == recipe.pause_every - 1:
            time.sleep(0.5)
    if rank == 0:
        with (folder / f"{recipe.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["number", "start_s", "size_bytes"])
            writer.writerows((n, f"{t - rows[0][1]:.6f}", size) for n, t, size in rows)
    dist.destroy_process_group()


Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def _recording_hook(rows: list[tuple[int, float, int]]) -> Hook:
    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        data = bucket.buffer()
        rows.append((len(rows), time.monotonic(), data.numel() * data.element_size()))
        work = dist.all_reduce(data.div_(2), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    return hook


def _model(recipe: Recipe) -> tuple[nn.Module, torch.Tensor]:
    if recipe.model == "mlp":
        layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.Linear(768, 10)]
        return nn.Sequential(*layers), torch.randn(recipe.batch, 512)
    if recipe.model == "equal":
        equal = [nn.Linear(512, 512, bias=False) for _ in range(6)]
        return nn.Sequential(*equal), torch.randn(recipe.batch, 512)
    if recipe.model == "convolutions":
        widths = (3, 32, 64, 128, 256)
        blocks: list[nn.Module] = []
        for i, o in itertools.pairwise(widths):
            blocks += [nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
        return nn.Sequential(*blocks), torch.randn(recipe.batch, 3, 64, 64)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 6), torch.randn(recipe.batch, 32, 128)


if __name__ == "__main__":
    main()
