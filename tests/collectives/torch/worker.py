"""Scenarios of one rank, as a program."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import presage.collectives.torch  # noqa: F401 - registers the backend
from presage.collectives.torch import rank as rank_module
from presage.collectives.torch.arbiter_link import ArbiterLink
from presage.collectives.torch.forecast import set_forecast
from tests.collectives.torch.arbiter import VARIABLE, TestConnection
from tests.support.waiting import wait_until


class NoEstimator:
    def observe(self, number, start_s, size_bytes):
        pass

    def estimate(self):
        return None


if VARIABLE in os.environ:  # instead of the arbiter
    replaced: Any = rank_module
    replaced.open_arbiter_link = lambda settings, member: ArbiterLink(
        TestConnection(member.rank), NoEstimator(), None
    )


def say(**line):
    os.write(1, (json.dumps(line) + "\n").encode())  # at once: ranks may share the pipe


def digest(*tensors):
    content = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(content).hexdigest()


def values_of(number, rank, size):
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randn(size, generator=generator)


def group_of_all() -> Any:
    return dist.group.WORLD


def wait_for_switch(group, options):
    """Reduce until the switch has summed something."""
    if not options.get("use_switch"):
        return

    def has_summed() -> bool:
        if group.statistics()["summed"]:
            return True
        dist.all_reduce(torch.ones(options["size"]))
        return False

    wait_until(has_summed, pause_s=0.01)
    # All ranks leave at the same number: the switch sums for all.


def sums(options):
    """Compare AllReduces with those of gloo; print digests, the largest difference and counts."""
    group, rank, ranks = group_of_all(), dist.get_rank(), dist.get_world_size()
    size, steps = options["size"], options["steps"]
    plain = dist.new_group(list(range(ranks)), backend="gloo")
    wait_for_switch(group, options)
    before = group.statistics()
    say(ready=True)
    results, worst = [], 0.0
    operation = dist.ReduceOp.AVG if options.get("average") else dist.ReduceOp.SUM
    for step in range(steps):
        tensor = values_of(step, rank, size)
        expected = tensor.clone()
        dist.all_reduce(tensor, op=operation)
        results.append(tensor)
        if options.get("compare"):
            dist.all_reduce(expected, op=operation, group=plain)
            worst = max(worst, float((tensor - expected).abs().max()))
        say(step=step)
        time.sleep(options.get("pause_s", 0))
    after = group.statistics()
    counts = {name: after[name] - before[name] for name in before}
    say(end=True, digest=digest(*results), worst=worst, **counts)


def timed(options):
    """Reduce for some time, and print how long the longest AllReduce took."""
    group, rank = group_of_all(), dist.get_rank()
    if forecast := options.get("forecast"):
        set_forecast(*forecast)
    wait_for_switch(group, options)
    say(ready=True)
    hashes = hashlib.sha256()
    longest_s, first, summed_at = 0.0, group.statistics(), []
    for step in range(options["steps"]):
        tensor = values_of(step, rank, options["size"])
        begin_s = time.monotonic()
        dist.all_reduce(tensor)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        hashes.update(tensor.numpy().tobytes())
        summed_at.append(group.statistics()["summed"])
        say(step=step, summed=summed_at[-1])
        time.sleep(options.get("pause_s", 0))
    last = group.statistics()
    counts = {name: last[name] - first[name] for name in first}
    say(end=True, digest=hashes.hexdigest(), longest_s=longest_s, summed_at=summed_at, **counts)


def unequal(options):
    """Call an AllReduce with another size at each rank; print the error."""
    wait_for_switch(group_of_all(), options)
    sizes = options["sizes"]
    if options.get("known"):
        for size in sorted(set(sizes)):
            dist.all_reduce(torch.ones(size))
    if "first" in options:
        dist.all_reduce(torch.ones(options["first"]))
    say(ready=True)
    error = ""
    try:
        dist.all_reduce(torch.ones(sizes[dist.get_rank()]))
    except RuntimeError as raised:
        error = str(raised)
    say(end=True, error=error)


def alone(options):
    """Reduce in a job of one rank."""
    tensor = torch.arange(100_000.0)
    dist.all_reduce(tensor)
    say(end=True, is_unchanged=bool((tensor == torch.arange(100_000.0)).all()))


def others(options):
    """Run collectives that the switch does not compute."""
    group, rank, ranks = group_of_all(), dist.get_rank(), dist.get_world_size()
    wait_for_switch(group, options)
    before = group.statistics()
    size = options["size"]
    total = ranks * (ranks + 1) // 2
    found = {}

    def reduce(tensor, **more):
        dist.all_reduce(tensor, **more)
        return tensor

    one = rank + 1
    found["int64"] = bool((reduce(torch.full((size,), one)) == total).all())
    bf16 = reduce(torch.full((size,), float(one), dtype=torch.bfloat16))
    found["bf16"] = bool((bf16 == total).all())
    found["float64"] = bool((reduce(torch.full((size,), float(one)).double()) == total).all())
    largest = reduce(torch.full((size,), float(one)), op=dist.ReduceOp.MAX)
    found["max"] = bool((largest == ranks).all())
    found["empty"] = reduce(torch.empty(0)).numel() == 0
    found["small"] = float(reduce(torch.full((3,), float(one)))[0]) == total
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([float(one)]), (ranks,))
    found["sparse"] = bool((reduce(sparse).to_dense() == torch.arange(1, ranks + 1)).all())
    found["strided"] = bool((reduce(torch.ones(4, size).t()) == ranks).all())
    pair = dist.new_group([0, 1])
    if rank < 2:
        inside = torch.full((size,), float(one))
        dist.all_reduce(inside, group=pair)
        found["sub-group"] = bool((inside == 3).all())
    parts = [torch.zeros(2) for _ in range(ranks)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    found["all_gather"] = [float(part[0]) for part in parts] == list(range(ranks))
    flat = torch.zeros(2 * ranks)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    found["all_gather_into_tensor"] = flat[::2].tolist() == list(range(ranks))
    box = torch.full((2,), float(one))
    dist.broadcast(box, src=1)
    found["broadcast"] = float(box[0]) == 2
    pieces = [torch.full((2,), float(one)) for _ in range(ranks)]
    mine = torch.zeros(2)
    dist.reduce_scatter(mine, pieces)
    found["reduce_scatter"] = float(mine[0]) == total
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = [o["rank"] for o in objects] == list(range(ranks))
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    elif rank == 1:
        received = torch.zeros(2)
        dist.recv(received, src=0)
        found["send"] = float(received[0]) == 1
    handles = [dist.all_reduce(torch.ones(size), async_op=True) for _ in range(8)]
    last = torch.ones(size)
    handles.append(dist.all_reduce(last, async_op=True))
    dist.barrier()
    found["barrier"] = all(handle.is_completed() for handle in handles)
    for handle in handles:
        handle.wait()
    found["asynchronous"] = bool((last == ranks).all())
    after = group.statistics()
    say(end=True, found=found, numbered=after["numbered"] - before["numbered"])


def ddp(options):
    """Train a small model under DDP; print the losses."""
    torch.manual_seed(0)
    group, rank = group_of_all(), dist.get_rank()
    wait_for_switch(group, options)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 1),
    )  # fmt: skip
    if options.get("compile"):
        model = torch.compile(model, backend="aot_eager")
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    before = group.statistics()["summed"]
    losses = []
    for step in range(options["steps"]):
        inputs = values_of(step, rank, (32, 64))
        targets = inputs[:, :4].sum(1, keepdim=True)
        loss = torch.nn.functional.mse_loss(wrapped(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(float(mean))
    state = digest(*wrapped.parameters())
    summed = group.statistics()["summed"] - before
    say(end=True, losses=losses, digest=state, summed=summed)


def main():
    scenario, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("presage_inc", timeout=timedelta(seconds=options.get("timeout_s", 20)))
    globals()[scenario](options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
