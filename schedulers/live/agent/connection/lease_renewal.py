"""Renewal of a node's lease, after the orders that arrived with it are applied."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock

from presage.schedulers.live.agent.connection.lease import write_lease
from presage.serving.server.log import log


class LeaseRenewal:
    """Lease of a node, as its controller extends it; safe for two threads.

    A task that is missing from new orders may run on another node: it must be ended here before a
    new lease lets it start.

    Attributes
    ----------
    until_s : float
        End of the last lease; 0 before the first. The lease file may end earlier if it cannot be
        written: tasks are then started anyway, and fail for lack of disk space.
    """

    def __init__(self, state: Path) -> None:
        self.until_s = 0.0
        self._state, self._lock = state, Lock()
        self._received = self._applied = 0  # orders, counted
        self._pending: list[tuple[int, float]] = []  # number of orders to apply first, end

    @property
    def has_applied(self) -> bool:
        """Whether any orders have been applied."""
        return self._applied > 0

    def count_orders(self) -> int:
        """Count orders that arrived, and return their number for :meth:`apply`."""
        with self._lock:
            self._received += 1
            return self._received

    def extend(self, until_s: float) -> None:
        """Extend the lease, as soon as all orders that have arrived are applied."""
        with self._lock:
            self._pending.append((self._received, until_s))
            self._write()

    def apply(self, number: int) -> None:
        """Note that the orders with this number, and all before them, are applied."""
        with self._lock:
            self._applied = number
            self._write()

    def _write(self) -> None:
        due = [until_s for number, until_s in self._pending if number <= self._applied]
        self._pending = [entry for entry in self._pending if entry[0] > self._applied]
        if not due:
            return
        self.until_s = due[-1]  # of the newest response, also if it is shorter
        try:
            write_lease(self._state, self.until_s)
        except OSError as error:
            log(logging.ERROR, "the lease cannot be written", error=str(error))
