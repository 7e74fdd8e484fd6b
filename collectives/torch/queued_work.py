"""Handle of a collective that waits in the queue."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

_NO_TIMEOUT = timedelta(0)


class QueuedWork(Work):
    """Handle whose outcome is set by the thread of the queue.

    C++ code, such as the reducer of DDP, waits for the future. Its errors have to be errors in C++
    too, which only ``then`` produces.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._source: Any = None
        self._future: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """Set the outcome and wake all that wait; only the first call has an effect."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            source = self._source
        if source is not None:
            source.set_result(None)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the outcome; raise the error if there is one, or RuntimeError on a time-out."""
        seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
        if not self._done.wait(seconds):
            raise RuntimeError(f"the collective did not end within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        """Return a future of the tensors."""
        with self._lock:
            is_new = self._future is None
            if is_new:
                self._source = torch.futures.Future()
                self._future = self._source.then(self._value)
            is_late = is_new and self._done.is_set()  # ``finish`` has seen no future
        if is_late:
            self._source.set_result(None)
        return self._future

    def is_completed(self) -> bool:
        """Return whether the outcome is known."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether the collective has ended without an error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error, if there is one."""
        return self._error

    def result(self) -> list[Tensor]:
        """Return the tensors."""
        return self._tensors

    def _value(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors
