"""When a node's lease is renewed: not before the orders that came with it are obeyed."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock

from presage.schedulers.live.agent.lease import write_lease
from presage.serving.server.log import log


class Renewal:
    """The lease of a node, by what its controller says; for two threads.

    A task that orders do not have any more may run elsewhere: it is to end before a new lease lets
    it begin here.

    Attributes
    ----------
    until_s : float
        As it was last granted; 0 before. Its file says less where it cannot be written: then tasks
        are tried all the same, and go back for want of room.
    """

    def __init__(self, state: Path) -> None:
        self.until_s = 0.0
        self._state, self._lock = state, Lock()
        self._heard = self._obeyed = 0  # orders, counted
        self._waiting: list[tuple[int, float]] = []  # once so many are obeyed, until when

    @property
    def obeyed(self) -> bool:
        """Whether any orders ever were."""
        return self._obeyed > 0

    def order(self) -> int:
        """Orders came: their number, to say when they are obeyed."""
        with self._lock:
            self._heard += 1
            return self._heard

    def until(self, until_s: float) -> None:
        """Renew it, once all orders that have come are obeyed."""
        with self._lock:
            self._waiting.append((self._heard, until_s))
            self._write()

    def obey(self, number: int) -> None:
        """So many orders are obeyed, the last of them and so all before."""
        with self._lock:
            self._obeyed = number
            self._write()

    def _write(self) -> None:
        due = [until_s for number, until_s in self._waiting if number <= self._obeyed]
        self._waiting = [one for one in self._waiting if one[0] > self._obeyed]
        if not due:
            return
        self.until_s = due[-1]  # of the newest answer, also if shorter
        try:
            write_lease(self._state, self.until_s)
        except OSError as error:
            log(logging.ERROR, "the lease cannot be written", error=str(error))
