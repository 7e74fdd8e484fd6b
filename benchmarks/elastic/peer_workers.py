"""Workers of the jobs that torchrun and torchft run: the model and data of the elastic job.

``python -m benchmarks.elastic.peer_workers torchrun|torchft FOLDER NAME`` is what a peer starts. It
imports nothing of Presage, so that it runs in an environment without it.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import write_commit
from benchmarks.elastic.workers import BATCH, SAMPLES, make_data, make_model

# Seconds. A time-out of gloo must be longer than the start of all workers takes to differ.
GLOO_TIMEOUT_S = 10.0
TORCHFT_GLOO_TIMEOUT_S, TORCHFT_TIMEOUT_S, TORCHFT_QUORUM_TIMEOUT_S = 1.0, 5.0, 30.0
TORCHFT_HEARTBEAT_S = 0.05
_TORCHFT_SHARE = BATCH // 3  # a replica's batch does not depend on the number of replicas


def torchrun_worker(folder: Path, name: str) -> None:
    """Train with DistributedDataParallel; load the snapshot that is there, and write one a step."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=GLOO_TIMEOUT_S))
    rank, size = dist.get_rank(), dist.get_world_size()
    plain, (x, y) = make_model(), make_data()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    snapshot = folder / "snapshot.pt"
    step, generation = 0, 1
    if snapshot.exists():
        saved = torch.load(snapshot)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, generation = saved["step"], saved["generation"] + 1
    model = torch.nn.parallel.DistributedDataParallel(plain)
    share = BATCH // size
    with (folder / f"{name}.log").open("a", buffering=1) as log:
        while True:
            _backward(model, optimizer, x, y, step * BATCH + rank * share, share)
            optimizer.step()
            step += 1
            if rank == 0:
                state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"step": step, "generation": generation}, f"{snapshot}.part")
                Path(f"{snapshot}.part").replace(snapshot)
            write_commit(log, generation, step, size)


def torchft_worker(folder: Path, name: str) -> None:
    """Train as a replica group of one worker.

    Gradients are averaged by ``Manager.allreduce``: with torchft's DistributedDataParallel a worker
    ends by an AssertionError in ``ddp.py`` when another one is killed during a sum.
    """
    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer, ProcessGroupGloo

    model, (x, y) = make_model(), make_data()
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    group = ProcessGroupGloo(timeout=timedelta(seconds=TORCHFT_GLOO_TIMEOUT_S))
    manager = Manager(
        pg=group, min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        timeout=timedelta(seconds=TORCHFT_TIMEOUT_S),
        quorum_timeout=timedelta(seconds=TORCHFT_QUORUM_TIMEOUT_S),
        heartbeat_interval=timedelta(seconds=TORCHFT_HEARTBEAT_S),
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
        hostname="127.0.0.1", replica_id=name, init_sync=False,
    )  # fmt: skip
    optimizer = Optimizer(manager, inner)
    with (folder / f"{name}.log").open("w", buffering=1) as log:
        while True:
            before = manager.current_step()
            _backward(model, optimizer, x, y, before * BATCH, _TORCHFT_SHARE)
            _average(manager, model)
            optimizer.step()
            if manager.current_step() > before:
                # The number of the quorum has no public name.
                write_commit(log, manager._quorum_id, manager.current_step(), group.size())


def _average(manager: Any, model: Any) -> None:
    """Average all gradients over the replicas, in one sum."""
    import torch

    gradients = [one.grad for one in model.parameters()]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    manager.allreduce(flat).wait()
    torch.nn.utils.vector_to_parameters(flat, gradients)


def _backward(model: Any, optimizer: Any, x: Any, y: Any, start: int, share: int) -> None:
    """Compute the gradients of a batch."""
    import torch

    at = start % (SAMPLES - share)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x[at : at + share]), y[at : at + share])
    loss.backward()


if __name__ == "__main__":
    worker = {"torchrun": torchrun_worker, "torchft": torchft_worker}[sys.argv[1]]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    worker(Path(sys.argv[2]), sys.argv[3])
