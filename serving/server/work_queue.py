"""Execution of requests: small ones in the event loop, large ones in threads.

Switching to another thread costs more than the models of a small request, and a large request in
the event loop would delay all others. ONNX Runtime and numpy release the GIL while they compute, so
threads of large requests run in parallel with the event loop and with each other.
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

# Both limits are about a millisecond of work.
INLINE_ROWS = 64
INLINE_BYTES = 64 * 1024
THREADS = 2


def is_small(rows: int, size_bytes: int) -> bool:
    """Return whether a request is processed in the event loop."""
    return rows <= INLINE_ROWS and size_bytes <= INLINE_BYTES


T = TypeVar("T")


class WorkQueue:
    """Executor of request functions, first in, first out, that skips expired calls."""

    def __init__(self, metrics: Metrics, *, max_queued_rows: int = MAX_QUEUED_ROWS) -> None:
        self._queue = BatchQueue(max_queued_rows)
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="presage-batch")

    def run(
        self, rows: int, size_bytes: int, call: Call, compute: Callable[[], T]
    ) -> T | Awaitable[T]:
        """Return the result of ``compute`` for a small request, an awaitable of it for a large one.

        Parameters
        ----------
        rows, size_bytes : int
            Rows and bytes of the request.
        call : Call
            The call, whose deadline is checked before ``compute`` runs.
        compute : callable
            Computes the response.

        Raises
        ------
        OverloadedError, ExpiredError
            The queue is full, or the deadline of the call has passed; ``compute`` did not run.
        """
        if is_small(rows, size_bytes):
            call.check_deadline()
            return compute()

        def run_unless_expired() -> T:
            call.check_deadline()
            return compute()

        return self._run_in_thread(rows, run_unless_expired)

    async def _run_in_thread(self, rows: int, compute: Callable[[], T]) -> T:
        with self._queue.reserve(rows):
            self._metrics.queue_rows.set(self._queue.rows)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, compute)
            finally:
                self._metrics.queue_rows.set(max(0, self._queue.rows - rows))

    def close(self) -> None:
        """Stop the threads after their current requests."""
        self._threads.shutdown(cancel_futures=True)
