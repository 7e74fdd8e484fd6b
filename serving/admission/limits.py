"""Load limits: rows per second of one client, and rows of large requests that wait.

A request over a limit is rejected at once, with the time after which to retry. Its client can use
another replica, and the latency of other clients does not increase.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from presage.errors import OverloadedError

_MAX_CLIENTS = 10_000  # with a token bucket; the least recently active one is dropped


class RateLimit:
    """Token bucket per client, refilled at ``rows_per_s`` and holding the rows of one second.

    A larger request is accepted from a bucket that is not empty and leaves it negative.
    """

    def __init__(self, rows_per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # rows, when

    def consume(self, client: str, rows: int) -> None:
        """Take the rows of a request from a client's bucket.

        Raises
        ------
        OverloadedError
            The bucket is empty.
        """
        now_s = self._clock()
        left, then_s = self._buckets.pop(client, (self._rows_per_s, now_s))
        left = min(self._rows_per_s, left + (now_s - then_s) * self._rows_per_s)
        is_admitted = left > 0
        self._buckets[client] = (left - rows if is_admitted else left, now_s)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not is_admitted:
            raise OverloadedError(
                f"this client sends more than {self._rows_per_s:g} rows per second; send fewer, or "
                "have the server's --rows-per-s raised",
                retry_after_s=(1 - left) / self._rows_per_s,
            )


class BatchQueue:
    """Rows of large requests that wait or are being processed, and the limit on their number."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows_per_s = 50_000.0  # an estimate until the first request has been processed
        self.rows = 0

    @contextmanager
    def reserve(self, rows: int) -> Iterator[None]:
        """Reserve a place for the rows of a request while the block runs.

        A request larger than the limit is accepted while the queue is empty.

        Raises
        ------
        OverloadedError
            Too many rows wait.
        """
        if self.rows and self.rows + rows > self._max_rows:
            raise OverloadedError(
                f"{self.rows} rows are waiting and the limit is {self._max_rows}; retry later, or "
                "use another replica",
                retry_after_s=self.rows / self._rows_per_s,
            )
        self.rows += rows
        begin_s = time.monotonic()
        waiting = self.rows
        try:
            yield
            # All waiting rows were processed in this time: the queue is first in, first out. The
            # time of a cancelled or rejected call says nothing about the work and is not counted.
            elapsed_s = max(time.monotonic() - begin_s, 1e-6)
            self._rows_per_s += 0.2 * (waiting / elapsed_s - self._rows_per_s)
        finally:
            self.rows -= rows
