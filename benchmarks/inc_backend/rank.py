"""One rank: AllReduces of gloo and of the backend in turns, and ways to agree on an epoch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ProcessGroupGloo
from torch.distributed import ProcessGroup, ReduceOp

import presage.collectives.torch  # noqa: F401 - registers the backend
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import Member
from presage.collectives.core.view import JobView, Reason
from presage.collectives.torch.driver.rank_driver import RankDriver

SIZES = (1 << 10, 80_000, 400_000, 4_000_000)  # bytes
_CALLS = {1 << 10: 1500, 80_000: 1500, 400_000: 600, 4_000_000: 120}
_WARM = 50
_ONES = 8  # values that are appended, one for each epoch since the one in use

Run = Callable[[Tensor], None]


class _Floor(ProcessGroup):
    """Smallest process group in Python: passes AllReduces on to gloo."""

    def __init__(self, gloo: Any, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)  # type: ignore[call-arg]
        self._gloo = gloo

    def allreduce(self, tensors: Any, options: Any = None, _: Any = None) -> Any:
        """Pass it on."""
        return self._gloo.allreduce(tensors, options)


def main() -> None:
    """Print a row for each size, and the time of a decision."""
    torch.set_num_threads(1)
    dist.init_process_group("presage_inc", timeout=timedelta(seconds=60))
    group: Any = dist.group.WORLD
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = PrefixStore("benchmark", dist.distributed_c10d._get_default_store())

    def new_gloo(name: str) -> Any:
        return ProcessGroupGloo(PrefixStore(name, store), rank, ranks, timedelta(seconds=60))

    # A group for each way: one that is used more often has warmer threads.
    floor = _Floor(new_gloo("floor"), rank, ranks)
    ways = {
        **_ways(group, new_gloo("gloo"), floor),
        **_exchanges(new_gloo("data"), new_gloo("epochs")),
    }
    rows = [_row(size, ranks, ways) for size in SIZES]
    if rank == 0:
        load = os.getloadavg()[0]
        decision = _decision_us()
        print(json.dumps({"rows": rows, "load": load, **decision}), flush=True)
    dist.destroy_process_group()


def _ways(group: Any, gloo: Any, floor: Any) -> dict[str, Run]:
    def by(one: Any) -> Run:
        return lambda tensor: one.allreduce([tensor], AllreduceOptions()).wait()

    return {"gloo": by(gloo), "floor": by(floor), "backend": by(group)}


def _exchanges(data: Any, epochs: Any) -> dict[str, Run]:
    """Return ways to exchange epochs with an AllReduce."""
    smallest = AllreduceOptions()
    smallest.reduceOp = ReduceOp.MIN  # type: ignore[assignment]

    def appended(tensor: Tensor) -> None:
        values = torch.empty(tensor.numel() + _ONES)
        values[:-_ONES] = tensor
        values[-_ONES:] = 1
        data.allreduce([values], AllreduceOptions()).wait()
        tensor.copy_(values[:-_ONES])

    def concurrent(tensor: Tensor) -> None:
        work = epochs.allreduce([torch.zeros(5, dtype=torch.int64)], smallest)
        data.allreduce([tensor], AllreduceOptions()).wait()
        work.wait()

    def after(tensor: Tensor) -> None:
        data.allreduce([tensor], AllreduceOptions()).wait()
        epochs.allreduce([torch.zeros(5, dtype=torch.int64)], smallest).wait()

    return {"appended": appended, "concurrent": concurrent, "after": after}


def _row(size: int, ranks: int, ways: dict[str, Run]) -> dict[str, Any]:
    """Return median times in microseconds; each way takes each place in the order."""
    tensor = torch.zeros(size // 4)
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    for call in range(_CALLS[size] + _WARM):
        turn = call % len(names)
        for name in names[turn:] + names[:turn]:
            begin_ns, busy_ns = time.perf_counter_ns(), time.thread_time_ns()
            ways[name](tensor)
            busy[name].append((time.thread_time_ns() - busy_ns) / 1000)
            times[name].append((time.perf_counter_ns() - begin_ns) / 1000)
    kept = {name: found[_WARM:] for name, found in times.items()}
    differences = {
        name: median(b - a for a, b in zip(kept["gloo"], kept[name], strict=True)) for name in names
    }
    return {
        "size": size,
        "ranks": ranks,
        "median_us": {name: median(found) for name, found in kept.items()},
        "over_us": differences,
        "busy_us": {name: median(found[_WARM:]) for name, found in busy.items()},
    }


class _NoExchange:
    """Exchange of epochs that is never due."""

    is_ready, is_under_way, has_epochs = True, False, False
    equal_sizes: dict[int, int] = {}  # noqa: RUF012

    def is_new(self, _: int) -> bool:
        return False

    def finish(self, _: Any = None) -> None:
        return None

    def begin(self, *_: int) -> None:
        pass


def _decision_us() -> dict[str, float]:
    """Return the time of a decision: the lookup, the counted one, and a full step."""
    view = JobView(1, 0, bytes([Reason.IN_USE]) * 100_000)
    exchange: Any = _NoExchange()
    driver = RankDriver(
        Member("job", 0, 2), InBandAgreement((view,)), exchange=exchange, link=None,  # type: ignore[arg-type]
        connection=None, timeout_s=1,
    )  # fmt: skip

    def full() -> None:
        driver.begin(1 << 20)
        driver.end_ring()

    found = {
        "lookup_us": lambda: view.is_allowed(50_000),
        "counted_us": lambda: driver.can_skip(15),
    }
    return {name: _median_us(run) for name, run in {**found, "full_us": full}.items()}


def _median_us(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(20_000):
        begin_ns = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begin_ns) / 1000)
    return median(times)


if __name__ == "__main__":
    main()
