"""One rank of a training job of the demonstration: DistributedDataParallel, unchanged.

Computation is emulated by sleeping, as if a GPU did it; gradients, buckets and AllReduces are those
of a real model. The rank prints one JSON line when it is ready, and one with its result at the end.
SIGTERM to rank 0 ends the job after a few more iterations.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import presage.collectives.torch  # noqa: F401 - registers the backend
from presage.collectives.torch.backend import BACKEND

WARM_UP = 5  # iterations: buckets are rebuilt, and the job's phases are learnt
_MORE = 10  # iterations after the signal, so that all ranks learn of the end in time
_TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training job.

    Attributes
    ----------
    name : str
        Name at arbiter and switch.
    ranks : int
        Number of ranks, each on a machine of its own.
    gradient_bytes : int
        Size of all gradients of an iteration, rounded up to a square matrix.
    compute_s : float
        Time of an iteration without communication.
    """

    name: str
    ranks: int
    gradient_bytes: int
    compute_s: float

    def to_json(self) -> str:
        """Return the job as text."""
        return json.dumps(asdict(self))


def make_model(gradient_bytes: int) -> nn.Module:
    """Return a model with at least this size of gradients, in two layers."""
    width = max(1, int((gradient_bytes / 8) ** 0.5 + 0.999))
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width, bias=False), nn.Tanh(), nn.Linear(width, width, bias=False)
    )


def train(job: TrainingJob) -> dict[str, Any]:
    """Train until rank 0 gets SIGTERM.

    Returns
    -------
    dict
        ``starts_s`` and ``ends_s`` of the backward pass of each iteration, ``summed``, the number
        of AllReduces on the switch so far, ``losses``, and ``counts`` and the ``digest`` of the
        parameters at the end.
    """
    torch.set_num_threads(1)
    is_ending: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: is_ending.append(True))
    dist.init_process_group(BACKEND, timeout=_TIMEOUT)
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    model = nn.parallel.DistributedDataParallel(
        make_model(job.gradient_bytes), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    width = model.module[0].in_features
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(4, width, generator=generator)
    group: Any = dist.group.WORLD
    starts_s: list[float] = []
    ends_s: list[float] = []
    summed: list[int] = []
    losses: list[float] = []
    last = sys.maxsize
    while len(ends_s) < last:
        loss = model(inputs).square().mean()
        time.sleep(job.compute_s)
        optimizer.zero_grad()
        starts_s.append(time.monotonic())
        loss.backward()  # ends when the gradients are summed
        ends_s.append(time.monotonic())
        optimizer.step()
        summed.append(group.statistics()["summed"])
        losses.append(float(loss.detach()))
        if len(ends_s) == WARM_UP and rank == 0:
            sys.stdout.write('{"ready": true}\n')
            sys.stdout.flush()
        if is_ending and rank == 0 and last == sys.maxsize:
            store.set("last", str(len(ends_s) + _MORE))
        if last == sys.maxsize and store.check(["last"]):
            last = int(store.get("last"))
    counts = group.statistics()
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    dist.destroy_process_group()
    return {
        "starts_s": starts_s, "ends_s": ends_s, "summed": summed, "losses": losses,
        "counts": counts,
        "digest": hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16],
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.write(json.dumps(train(TrainingJob(**json.loads(sys.argv[1])))) + "\n")
