"""Worker processes of the benchmark: elastic jobs, DDP over gloo, and bare sums."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.elastic.commits import write_commit

os.environ.setdefault("OMP_NUM_THREADS", "1")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["benchmarks.elastic.workers", "torch", "torch._dynamo"])
BATCH, SAMPLES, FEATURES = 96, 9600, 256
WARM_UP = 10  # steps


class StepTimer:
    """Elapsed time and processor time of steps, without the first ones."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []

    def step(self) -> None:
        """Note the end of a step."""
        self._ends.append((time.monotonic(), time.process_time()))

    def has_result(self) -> bool:
        """Return whether there were enough steps."""
        return len(self._ends) > WARM_UP + 1

    def result(self) -> tuple[float, float]:
        """Return the median seconds of a step, and its mean processor seconds of all threads."""
        ends = self._ends[WARM_UP:]
        elapsed = statistics.median(b[0] - a[0] for a, b in pairwise(ends))
        return elapsed, (ends[-1][1] - ends[0][1]) / (len(ends) - 1)


def make_model() -> Any:
    """Return a network of about 400,000 parameters, of 1.6 MB."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512),
        torch.nn.ReLU(), torch.nn.Linear(512, 10),
    )  # fmt: skip


def make_data() -> tuple[Any, Any]:
    """Return samples and classes."""
    import torch

    return torch.randn(SAMPLES, FEATURES), torch.randint(0, 10, (SAMPLES,))


def elastic_worker(state: str, name: str, epochs: int) -> None:
    """Train in an elastic job; write a log of its commits."""
    import torch

    from presage.training import elastic
    from presage.training.job_folder import JOB_VARIABLE, STATE_VARIABLE, WORKER_VARIABLE

    os.environ.update({STATE_VARIABLE: state, JOB_VARIABLE: "job", WORKER_VARIABLE: name})
    model, (x, y) = make_model(), make_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run = elastic.begin(model, optimizer, samples=SAMPLES, batch=BATCH)
    timer = StepTimer()
    with Path(state, f"{name}.log").open("w", buffering=1) as log:
        for step in run.steps(epochs):
            torch.nn.functional.cross_entropy(model(x[step.indices]), y[step.indices]).backward()
            if run.apply():
                timer.step()
                write_commit(log, run.generation, step.number, run.size)
    if timer.has_result():  # not of a worker that was released early
        Path(state, f"{name}.timer").write_text(json.dumps(timer.result()))


def ddp_worker(rank: int, size: int, store: str, steps: int, output: Any) -> None:
    """Train with DistributedDataParallel over gloo; put the time of a step."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    plain, (x, y) = make_model(), make_data()
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    share = BATCH // size
    timer = StepTimer()
    for step in range(steps):
        at = (step * BATCH + rank * share) % (SAMPLES - share)
        indices = np.arange(at, at + share)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[indices]), y[indices]).backward()
        optimizer.step()
        timer.step()
    if rank == 0:
        output.put(timer.result())
    dist.barrier()
    dist.destroy_process_group()


def gloo_sums(rank: int, size: int, store: str, floats: int, repeats: int, output: Any) -> None:
    """Sum a buffer by gloo; put the time of a sum."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    buffer = torch.ones(floats)
    timer = StepTimer()
    for _ in range(repeats):
        dist.all_reduce(buffer)
        timer.step()
    if rank == 0:
        output.put(timer.result())
    dist.barrier()
    dist.destroy_process_group()


def ring_sums(rank: int, size: int, ports: list[int], floats: int, repeats: int, out: Any) -> None:
    """Sum a buffer by our ring; put the time of a sum."""
    from presage.training.synchronous_accumulation import Flags, Ring

    server = socket.create_server(("127.0.0.1", ports[rank]))
    to_next = _connected(ports[(rank + 1) % size])
    ring = Ring(rank, size, 1, to_next, server.accept()[0])
    buffer = np.ones(floats, np.float32)
    timer = StepTimer()
    for step in range(repeats):
        ring.all_reduce(buffer, step, Flags())
        timer.step()
    if rank == 0:
        out.put(timer.result())
    time.sleep(0.2)
    ring.close()


def run_together(function: Any, size: int, *arguments: Any) -> tuple[float, float]:
    """Run a worker function on ``size`` ranks and return what rank 0 puts."""
    output = CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=function, args=(rank, size, *arguments, output))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    result: tuple[float, float] = output.get(timeout=300)
    for process in processes:
        process.join()
    return result


def free_ports(count: int) -> list[int]:
    """Return unused ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
