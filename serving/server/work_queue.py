"""Where requests are worked on: small ones at once, large ones in threads beside them.

A hop to another thread costs more than a small request's models, and a large one would hold all
others up. ONNX Runtime and numpy let go of the interpreter while they compute, so threads of
large requests do run beside the event loop, and beside each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from presage.serving.admission.limits import BatchQueue
from presage.serving.server.call import Call
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import MAX_QUEUED_ROWS

# About a millisecond of work.
INLINE_ROWS = 64
INLINE_BYTES = 64 * 1024
THREADS = 2


def is_small(rows: int, size_bytes: int) -> bool:
    """Whether a request is answered at once."""
    return rows <= INLINE_ROWS and size_bytes <= INLINE_BYTES


T = TypeVar("T")


class Work:
    """Runs functions, such as give a response's bytes, in their turn and not after a deadline."""

    def __init__(self, metrics: Metrics, *, max_queued_rows: int = MAX_QUEUED_ROWS) -> None:
        self._queue = BatchQueue(max_queued_rows)
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="presage-batch")

    def run(
        self, rows: int, size_bytes: int, call: Call, answer: Callable[[], T]
    ) -> T | Awaitable[T]:
        """The answer to a request of so many rows and bytes, or the promise of it.

        Raises
        ------
        OverloadedError, ExpiredError
            There is no room to wait, or the caller's deadline has passed; nothing was run.
        """
        if is_small(rows, size_bytes):
            call.check_time()
            return answer()

        def in_time() -> T:
            call.check_time()
            return answer()

        return self._beside(rows, in_time)

    async def _beside(self, rows: int, answer: Callable[[], T]) -> T:
        with self._queue.reserve(rows):
            self._metrics.queue_rows.set(self._queue.rows)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
            finally:
                self._metrics.queue_rows.set(max(0, self._queue.rows - rows))

    def close(self) -> None:
        """End the threads, once what they work on is done."""
        self._threads.shutdown(cancel_futures=True)
