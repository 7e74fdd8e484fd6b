"""Exchange of the ranks' newest epochs, concurrent with their AllReduces.

Each rank contributes its newest epoch, and all get the smallest one. It runs at some AllReduces
only, at the same time as their data, and its result is used when the *next* AllReduce ends. So no
rank waits for it. For the state machine this is as if newer views had arrived later. Which
AllReduces exchange epochs depends on their numbers and sizes only, so all ranks agree on it.

The exchange also compares number and size over the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    ProcessGroupGloo,
    Store,
)
from torch.distributed import ReduceOp, Work

from presage.collectives.torch.errors import CollectiveError, unequal

PERIOD = 16  # AllReduces from one exchange to the next; a power of 2
INTERVAL_BYTES = 4 << 20  # of data, of whose time an exchange takes little
_MAX_SIZES = 4096  # that are remembered as equal
_FIRST_POLL_S, _POLL_S = 5e-5, 0.01


class EpochExchange:
    """Smallest epochs of a job, agreed between its ranks.

    Attributes
    ----------
    has_epochs : bool
        Whether there are views to agree on. If not, only new sizes are compared.
    equal_sizes : dict of int to int
        Sizes in bytes that were equal on all ranks, with a mask: epochs are exchanged at the
        numbers that have none of its bits.
    """

    def __init__(self, store: Store, rank: int, ranks: int, timeout: timedelta) -> None:
        self._group: Any = ProcessGroupGloo(store, rank, ranks, timeout)
        self._ranks, self.has_epochs = ranks, False
        self.equal_sizes: dict[int, int] = {}
        self._timeout_s = timeout.total_seconds()
        self._minimum: Any = AllreduceOptions()
        self._minimum.reduceOp = ReduceOp.MIN  # type: ignore[assignment]
        self._work: Work | None = None
        self._values = torch.zeros(5, dtype=torch.int64)
        self._own = (0, 0)

    def is_new(self, size_bytes: int) -> bool:
        """Return whether no AllReduce of this size was compared yet."""
        return size_bytes not in self.equal_sizes

    @property
    def is_under_way(self) -> bool:
        """Whether an exchange has begun whose result was not taken."""
        return self._work is not None

    @property
    def is_ready(self) -> bool:
        """Whether no exchange is under way."""
        return self._work is None or self._work.is_completed()

    def begin(self, number: int, epoch: int, size_bytes: int) -> None:
        """Exchange epochs at this AllReduce if it is one that does; do not wait."""
        is_due = number & _mask(size_bytes) == 0
        if self.is_new(size_bytes) or (self.has_epochs and is_due):
            values = [epoch, number, -number, size_bytes, -size_bytes]
            self._values = torch.tensor(values, dtype=torch.int64)
            self._own = (number, size_bytes)
            self._work = self._group.allreduce([self._values], self._minimum)

    def finish(self, check: Callable[[], None] | None = None) -> int | None:
        """Wait for the exchange under way; return the smallest epoch, or None if there is none.

        Parameters
        ----------
        check : callable, optional
            Called now and then during a long wait; an error that it raises ends the wait.

        Raises
        ------
        UnequalCallsError
            Numbers or sizes differ over the ranks.
        CollectiveError
            A rank has ended.
        """
        if self._work is None:
            return None
        work, self._work = self._work, None
        end_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_POLL_S
        while not work.is_completed() and time.monotonic() < end_s:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
            if check is not None and pause_s == _POLL_S:
                check()
        _wait(work)
        epoch, number, negative_number, size, negative_size = self._values.tolist()
        if number != -negative_number or size != -negative_size:
            self._raise_unequal()
        if len(self.equal_sizes) < _MAX_SIZES:
            self.equal_sizes[size] = _mask(size)
        return int(epoch)

    def agree(self, value: int) -> int:
        """Return the smallest of the values of all ranks."""
        values = torch.tensor([value], dtype=torch.int64)
        _wait(self._group.allreduce([values], self._minimum))
        return int(values)

    def drain(self) -> None:
        """Wait for the exchange under way, which other ranks may need."""
        if self._work is not None:
            self._work.wait(timedelta(seconds=5))

    def close(self) -> None:
        """End the exchange."""
        self._group.abort()

    def _raise_unequal(self) -> None:
        own = torch.tensor(self._own, dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(self._ranks)]
        _wait(self._group.allgather([found], [own], AllgatherOptions()))
        raise unequal({rank: (int(pair[0]), int(pair[1])) for rank, pair in enumerate(found)})


def _mask(size_bytes: int) -> int:
    """Return the mask of a size: the larger it is, the more numbers exchange epochs."""
    period = min(PERIOD, max(1, INTERVAL_BYTES // max(1, size_bytes)))
    return (1 << (period.bit_length() - 1)) - 1


def _wait(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise CollectiveError(f"ranks cannot exchange epochs: {error}") from error
