"""Departure of a worker on a signal: it leaves its job at the end of the current step."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Departure:
    """Handlers of SIGTERM and SIGUSR1 that let a worker leave its job.

    A second SIGTERM ends the process at once, with exit status 143. The object is ready for
    ``select`` when a signal has arrived, until :meth:`clear`.

    Attributes
    ----------
    is_requested : bool
        Whether a signal requested this worker to leave.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._previous: dict[int, Any] = {}
        self._is_terminating = False
        self._process = 0

    def fileno(self) -> int:
        """Return the number of the file that is readable after a signal."""
        return self._wake.fileno()

    def clear(self) -> None:
        """Read what the handlers wrote, once :meth:`fileno` is readable."""
        self._wake.recv(64)

    def install(self) -> None:
        """Set the handlers; in another thread than the main one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._process = os.getpid()
        for number in _SIGNALS:
            previous = signal.signal(number, self._handle)
            self._previous.setdefault(number, previous)

    def restore(self) -> None:
        """Restore the previous handlers; SIGUSR1 is ignored if it had none."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            is_default = previous in (signal.SIG_DFL, None)
            # A late request for a checkpoint must not kill a worker that is done.
            is_late = number == signal.SIGUSR1 and is_default
            signal.signal(number, signal.SIG_IGN if is_late else previous or signal.SIG_DFL)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child process that inherited the handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGTERM and self._is_terminating:
            os._exit(128 + signal.SIGTERM)
        self._is_terminating |= number == signal.SIGTERM
        self.is_requested = True  # takes no lock: the main thread may hold it
        with suppress(OSError):
            self._waker.send(b"x")
