"""How much is taken on: rows that wait, and rows a second of one client.

What is over a limit is refused at once, with the time after which to ask again: a caller that
knows can go elsewhere, and the others' answers stay as quick as they were.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from presage.errors import OverloadedError

_MOST_CLIENTS = 10_000  # that are remembered; the one unheard of for longest is forgotten


class RateLimit:
    """A token bucket for each client: so many rows a second, and a second's worth at once.

    A request larger than that is taken when nothing is owed, and owed for afterwards.
    """

    def __init__(self, rows_per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # rows, when

    def take(self, client: str, rows: int) -> None:
        """Let a request of so many rows pass.

        Raises
        ------
        OverloadedError
            The client has had its rows.
        """
        now_s = self._clock()
        left, then_s = self._left.pop(client, (self._rows_per_s, now_s))
        left = min(self._rows_per_s, left + (now_s - then_s) * self._rows_per_s)
        taken = left > 0
        self._left[client] = (left - rows if taken else left, now_s)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        if not taken:
            raise OverloadedError(
                f"more than {self._rows_per_s:g} rows a second of this client; wait, or have "
                "--rows-per-s raised",
                retry_after_s=(1 - left) / self._rows_per_s,
            )


class BatchQueue:
    """Rows of large requests that wait or are being worked on."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._rows_per_s = 50_000.0  # a guess until something was done
        self.rows = 0

    @contextmanager
    def room_for(self, rows: int) -> Iterator[None]:
        """Room for so many rows, for as long as the block runs.

        A request that is larger than all the room is taken when nothing else waits.

        Raises
        ------
        OverloadedError
            Too many wait.
        """
        if self.rows and self.rows + rows > self._most_rows:
            raise OverloadedError(
                f"{self.rows} rows wait, at most {self._most_rows} do; ask again later, or ask "
                "another replica",
                retry_after_s=self.rows / self._rows_per_s,
            )
        self.rows += rows
        begin_s = time.monotonic()
        waiting = self.rows
        try:
            yield
            # All that waited was done in this time, since the queue is first in, first out. A call
            # that was cancelled or refused does not come here: it says nothing of the work.
            elapsed_s = max(time.monotonic() - begin_s, 1e-6)
            self._rows_per_s += 0.2 * (waiting / elapsed_s - self._rows_per_s)
        finally:
            self.rows -= rows
