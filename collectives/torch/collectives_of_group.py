"""Collectives as the queue runs them: those with a decision, and all others."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor
from torch.distributed import Work

from presage.collectives.torch.arbiter_link import ArbiterLink, Ended, Started
from presage.collectives.torch.driver.rank_driver import RankDriver


class PlainCollective:
    """Collective that gloo runs without a decision."""

    __slots__ = ("_launch", "order", "size_bytes", "tensors")
    has_begun = False

    def __init__(
        self,
        launch: Callable[[], Work],
        tensors: list[Tensor],
        order: int = 0,
        size_bytes: int = 0,
    ) -> None:
        self._launch, self.tensors = launch, tensors
        self.order, self.size_bytes = order, size_bytes

    def start_at_once(self) -> Work | None:
        """Start it."""
        return self._launch()

    def start(self) -> Work | None:
        """Start it."""
        return self._launch()

    def end(self) -> None:
        """Do nothing."""


class DecidedAllReduce:
    """AllReduce that runs on the switch or by ring.

    Parameters
    ----------
    ring : callable
        Starts the ring.
    divisor : int
        Number by which a sum of the switch is divided: 1, or the number of ranks for an average.
    order : int
        Position among all AllReduces of the job.
    arbiter : ArbiterLink or None
        What learns of start and end.
    """

    __slots__ = (
        "_arbiter", "_divisor", "_driver", "_is_on_switch", "_number", "_reason", "_ring",
        "_start_s", "_way",
        "has_begun", "order", "size_bytes", "tensors",
    )  # fmt: skip

    def __init__(
        self,
        driver: RankDriver,
        tensor: Tensor,
        ring: Callable[[], Work],
        *,
        divisor: int,
        order: int,
        arbiter: ArbiterLink | None,
    ) -> None:
        self._driver, self._ring, self._divisor = driver, ring, divisor
        self._arbiter, self.order, self.tensors = arbiter, order, [tensor]
        self.size_bytes = tensor.numel() * tensor.element_size()
        self.has_begun = self._is_on_switch = False

    def start_at_once(self) -> Work | None:
        """Start it if it runs by ring and need not wait; decide it in any case that can."""
        if not self._driver.can_begin_at_once(self.size_bytes):
            return None
        self._begin()
        return None if self._is_on_switch else self._ring()

    def start(self) -> Work | None:
        """Run it on the switch, or start the ring."""
        if not self.has_begun:
            self._begin()
        if self._is_on_switch and self._driver.reduce_on_switch(
            self.tensors[0].detach().numpy().reshape(-1)
        ):
            if self._divisor != 1:
                self.tensors[0].div_(self._divisor)
            return None
        if self._is_on_switch:
            self._is_on_switch, self._way = False, "refused"
        return self._ring()

    def end(self) -> None:
        """Note the end of the ring; what the switch completed is known already."""
        if not self._is_on_switch:
            self._driver.end_ring()
        if self._arbiter is not None:
            duration_s = time.monotonic() - self._start_s
            self._arbiter.ended.append(
                Ended(
                    self._number,
                    self._start_s,
                    duration_s,
                    self.size_bytes,
                    self._reason,
                    self._way,
                )
            )

    def _begin(self) -> None:
        self.has_begun = True
        self._number, self._start_s = self._driver.number, time.monotonic()
        self._is_on_switch = self._driver.begin(self.size_bytes, self.order)
        self._way = "inc" if self._is_on_switch else "ring"
        self._reason = self._driver.reason
        if self._arbiter is not None:
            start = (self._number, self._start_s, self.size_bytes, False, self._is_on_switch)
            self._arbiter.start(Started(*start))
