"""Process group ``presage_inc``: gloo, except for AllReduces that a switch sums.

Only the default group of a job uses the switch. Sub-groups and jobs of one rank are plain groups of
gloo. All collectives of the default group pass one queue; messages between two ranks do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ProcessGroupGloo, Store
from torch.distributed import ProcessGroup, ReduceOp, Work

from presage.collectives.phases.prior import Prior
from presage.collectives.torch.arbiter_link import Started
from presage.collectives.torch.collective_queue import CollectiveQueue
from presage.collectives.torch.collectives_of_group import DecidedAllReduce, PlainCollective
from presage.collectives.torch.eligibility import is_average, is_eligible
from presage.collectives.torch.errors import CollectiveError
from presage.collectives.torch.rank import Rank
from presage.collectives.torch.settings import Settings

BACKEND = "presage_inc"


def register() -> None:
    """Register the backend, unless it is registered already."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, _: Any) -> ProcessGroup:
    """Return a process group; called by ``init_process_group`` and ``new_group``.

    Parameters
    ----------
    options : DistributedBackendOptions
        Store, rank, size and time-out. ``global_ranks_in_group`` is empty for the default group.
    """
    place = (options.store, options.group_rank, options.group_size, options.timeout)
    if options.global_ranks_in_group or options.group_size == 1:
        return _plain_group(*place)
    return IncProcessGroup(*place, Settings.from_environment())


def _queued(name: str) -> Callable[..., Work]:
    """Return a method that passes a collective of gloo through the queue."""

    def method(self: IncProcessGroup, *args: Any, **options: Any) -> Work:
        tensors = _tensors(args)
        if tensors and tensors[0].is_cuda:
            return self._of_gpus(name)(*args, **options)
        launch = getattr(self._ring, name)
        return self._queue.submit(PlainCollective(lambda: launch(*args, **options), tensors))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Run ``{name}`` of gloo after the collectives before it."
    return method


class IncProcessGroup(ProcessGroup):
    """Default process group of a job.

    What is not overridden runs in a group of gloo of its own, since the order of collectives has
    to be the same on all ranks within each group of gloo. That are messages between two ranks, and
    ``reduce_scatter``, whose work in gloo never says that it has ended.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, settings: Settings
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._ring = ProcessGroupGloo(PrefixStore("ring", store), rank, size, timeout)
        self._cuda = _register_groups(self, store, rank, size, timeout)
        self._options = AllreduceOptions()
        self._rank = Rank(PrefixStore("inc", store), rank, size, timeout, settings)
        self._queue: CollectiveQueue = self._rank.queue
        self._driver, self._arbiter = self._rank.driver, self._rank.arbiter
        self._min_bytes = self._rank.settings.min_bytes
        self._max_bytes = self._rank.settings.max_bytes
        self._equal_sizes = self._driver.equal_sizes
        self._least_bytes = self._min_bytes if self._arbiter is not None else 0
        # Bound once, since looking them up takes time on each call.
        self._all_reduce = self._ring.allreduce  # type: ignore[attr-defined]
        self._can_skip = self._driver.can_skip
        self._start_if_idle = self._queue.start_if_idle
        self._order = 0

    def allreduce(self, tensors: Any, options: Any = None, timeout: Any = None) -> Work:
        """Reduce tensors over the ranks, on the switch or by ring."""
        if type(options) is not AllreduceOptions or type(tensors) is not list:
            tensors, options = _arguments(tensors, options, timeout)
        tensor = tensors[0]
        if tensor.is_cuda:
            return self._of_gpus("allreduce")(tensors, options)
        self._order += 1
        size = tensor.numel() * tensor.element_size()
        is_small = size < self._least_bytes
        mask = None if is_small else self._equal_sizes.get(size)
        if is_small or mask is not None:
            # By ring whatever the type is: the checks of it follow while the ring runs.
            work = self._start_if_idle(self._all_reduce, tensors, options, self._can_skip, mask)
            if work is not None:
                if self._arbiter is not None and not is_small:
                    self._count(tensors, options)
                return work
        if self._is_numbered(tensors, options):
            return self._queue.submit(self._decided(tensor, options))
        ring = self._all_reduce
        return self._queue.submit(
            PlainCollective(lambda: ring(tensors, options), tensors, self._order, size)
        )

    allreduce_coalesced = _queued("allreduce_coalesced")
    allgather = _queued("allgather")
    alltoall = _queued("alltoall")
    barrier = _queued("barrier")
    broadcast = _queued("broadcast")
    gather = _queued("gather")
    reduce = _queued("reduce")
    scatter = _queued("scatter")

    def _of_gpus(self, name: str) -> Callable[..., Work]:
        """Return a collective for tensors of GPUs, which do not pass the queue.

        Raises
        ------
        CollectiveError
            There is no NCCL for them.
        """
        if self._cuda is None:
            raise CollectiveError(f"{name} of a tensor of a GPU needs NCCL, which is not available")
        return getattr(self._cuda, name)  # type: ignore[no-any-return]

    def _is_numbered(self, tensors: list[Tensor], options: AllreduceOptions) -> bool:
        """Return whether an AllReduce gets a number.

        With an arbiter, if the switch can run it; without one, to compare its size.
        """
        if len(tensors) != 1:
            return False
        if self._arbiter is None:
            return tensors[0].is_cpu and tensors[0].layout is torch.strided
        return is_eligible(
            tensors[0], options.reduceOp, min_bytes=self._min_bytes, max_bytes=self._max_bytes
        )

    def _count(self, tensors: list[Tensor], options: AllreduceOptions) -> None:
        """Count an AllReduce that was started by ring."""
        if self._arbiter is not None and self._is_numbered(tensors, options):
            number, size = self._driver.number, tensors[0].numel() * 4
            self._arbiter.start(Started(number, time.monotonic(), size, True, False))
            self._driver.skip()

    def _decided(self, tensor: Tensor, options: AllreduceOptions) -> DecidedAllReduce:
        ring = self._all_reduce
        return DecidedAllReduce(
            self._driver,
            tensor,
            lambda: ring([tensor], options),
            divisor=self.size() if is_average(options.reduceOp) else 1,
            order=self._order,
            arbiter=self._arbiter,
        )

    def getBackendName(self) -> str:  # noqa: N802 - the name in C++
        """Return the name of the backend."""
        return BACKEND

    def statistics(self) -> dict[str, int]:
        """Return how many AllReduces were numbered, and how many the switch summed or failed.

        Those that a peer's sum completed count as summed.
        """
        driver = self._driver
        return {
            "numbered": driver.number,
            "summed": driver.summed,
            "failed": driver.failed,
            "epoch": driver.state.agreement.view.epoch,
        }

    def set_prior(self, prior: Prior) -> None:
        """Set the forecast that predicts arrivals until they are learnt."""
        if self._arbiter is not None:
            self._arbiter.set_prior(prior)

    def shutdown(self) -> None:
        """End all threads and connections; wait a few seconds for collectives under way."""
        self._rank.close()

    def abort(self) -> None:
        """End all threads and connections."""
        self._rank.close()


def _arguments(tensors: Any, options: Any, timeout: Any) -> tuple[list[Tensor], AllreduceOptions]:
    """Return the arguments of the overloads of ``allreduce`` in their usual form."""
    tensors = [tensors] if isinstance(tensors, Tensor) else tensors
    if not isinstance(options, AllreduceOptions):
        operation, options = options, AllreduceOptions()
        options.reduceOp = ReduceOp.SUM if operation is None else operation
        if timeout is not None:
            options.timeout = timeout
    return tensors, options


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested lists of arguments."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _plain_group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    group = ProcessGroup(store, rank, size)
    _register_groups(group, store, rank, size, timeout)
    return group


def _register_groups(
    group: ProcessGroup, store: Store, rank: int, size: int, timeout: timedelta
) -> Any:
    """Let gloo, and NCCL for tensors of GPUs, run what a group does not override."""
    kinds = ProcessGroup.BackendType
    gloo = ProcessGroupGloo(PrefixStore("direct", store), rank, size, timeout)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
    group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    return nccl
