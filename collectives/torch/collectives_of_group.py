"""Collectives as the queue runs them: those with a decision, and all others."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor
from torch.distributed import Work

from presage.collectives.torch.rank_driver import RankDriver


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
    observe : callable or None
        Called with number, start and size.
    """

    __slots__ = (
        "_divisor", "_driver", "_is_on_switch", "_observe", "_ring",
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
        observe: Callable[[int, float, int], None] | None,
    ) -> None:
        self._driver, self._ring, self._divisor = driver, ring, divisor
        self._observe, self.order, self.tensors = observe, order, [tensor]
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
        self._is_on_switch = False
        return self._ring()

    def end(self) -> None:
        """Note the end of the ring; what the switch completed is known already."""
        if not self._is_on_switch:
            self._driver.end_ring()

    def _begin(self) -> None:
        self.has_begun = True
        if self._observe is not None:
            self._observe(self._driver.number, time.monotonic(), self.size_bytes)
        self._is_on_switch = self._driver.begin(self.size_bytes, self.order)
