"""Thread of a rank that does what is not on the path of an AllReduce.

It handles messages while the rank is idle, keeps the connection to the switch, reports predicted
phases to the arbiter, and reports an AllReduce that does not end to the peers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from presage.collectives.torch.collective_queue import CollectiveQueue
from presage.collectives.torch.driver.rank_driver import RankDriver
from presage.collectives.torch.peers.messages import Progress

_LOG = logging.getLogger(__name__)
_TICK_S = 0.02
_REPORT_S = 0.2
STALL_S = 5.0


class Control:
    """Background thread of a rank.

    Parameters
    ----------
    report : callable or None
        Called some times a second; estimates phases and hands them to the arbiter's connection.
    """

    def __init__(
        self, driver: RankDriver, queue: CollectiveQueue, report: Callable[[], None] | None
    ) -> None:
        self._driver, self._queue, self._report = driver, queue, report
        self._reported: object = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inc-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _run(self) -> None:
        report_s = 0.0
        while not self._end.wait(_TICK_S):
            try:
                self._queue.end_finished()
                self._driver.tick()
                self._report_stall()
                if self._report is not None and time.monotonic() >= report_s:
                    report_s = time.monotonic() + _REPORT_S
                    self._report()
            except Exception:
                _LOG.exception("control of a rank")

    def _report_stall(self) -> None:
        """Report once to the peers which AllReduce does not end, so that they can compare sizes."""
        collective = self._queue.stalled(STALL_S)
        if collective is None or collective is self._reported or self._driver.peers is None:
            return
        self._reported = collective
        order, size = getattr(collective, "order", 0), getattr(collective, "size_bytes", 0)
        if order:
            self._driver.peers.broadcast(Progress(order, size))
