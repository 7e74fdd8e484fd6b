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
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, cast

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


@dataclass(slots=True)
class _Log:
    """Iterations so far: bounds of the backward pass, AllReduces on the switch, and losses."""

    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    summed: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


class _End:
    """Last iteration, which rank 0 chooses after SIGTERM and all ranks read from the store."""

    def __init__(self) -> None:
        self.last = sys.maxsize
        self._is_ending = False
        self._store = dist.distributed_c10d._get_default_store()

    def request(self, *_: object) -> None:
        """Handle SIGTERM."""
        self._is_ending = True

    def update(self, done: int) -> None:
        """Choose the last iteration, or read it, after ``done`` iterations."""
        if self._is_ending and dist.get_rank() == 0 and self.last == sys.maxsize:
            self._store.set("last", str(done + _MORE))
        if self.last == sys.maxsize and self._store.check(["last"]):
            self.last = int(self._store.get("last"))


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
    signals: list[Any] = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
    dist.init_process_group(BACKEND, timeout=_TIMEOUT)
    end = _End()
    signal.signal(signal.SIGTERM, end.request)
    if signals:  # while the group was created
        end.request()
    model = nn.parallel.DistributedDataParallel(
        make_model(job.gradient_bytes), gradient_as_bucket_view=True
    )
    log = _iterate(job, model, end)
    group: Any = dist.group.WORLD
    counts = group.statistics()
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    dist.destroy_process_group()
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
    return {**asdict(log), "counts": counts, "digest": digest}


def _iterate(job: TrainingJob, model: nn.Module, end: _End) -> _Log:
    """Train until the last iteration; rank 0 prints a line after the warm-up."""
    log, group = _Log(), cast("Any", dist.group.WORLD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    width = next(model.parameters()).shape[1]
    inputs = torch.randn(4, width, generator=generator)
    while len(log.ends_s) < end.last:
        loss = model(inputs).square().mean()
        time.sleep(job.compute_s)
        optimizer.zero_grad()
        log.starts_s.append(time.monotonic())
        loss.backward()  # ends when the gradients are summed
        log.ends_s.append(time.monotonic())
        optimizer.step()
        log.summed.append(group.statistics()["summed"])
        log.losses.append(float(loss.detach()))
        if len(log.ends_s) == WARM_UP and dist.get_rank() == 0:
            sys.stdout.write('{"ready": true}\n')
            sys.stdout.flush()
        end.update(len(log.ends_s))
    return log


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.write(json.dumps(train(TrainingJob(**json.loads(sys.argv[1])))) + "\n")
