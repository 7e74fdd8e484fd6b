"""Queue of the collectives of a process group, of which exactly one is under way (I5).

A collective that arrives while nothing is under way starts in the thread of the caller, so that it
costs no change of threads. Otherwise it waits. The callback of the one under way only signals the
thread of the queue, which takes the next one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from torch import Tensor
from torch.distributed import Work

from presage.collectives.torch.errors import CollectiveError
from presage.collectives.torch.queued_work import QueuedWork

_LOG = logging.getLogger(__name__)
_DRAIN_S = 10.0


class Collective(Protocol):
    """One collective, which is started once.

    ``order`` is its position among the AllReduces of the job, or 0 if it is none.
    """

    tensors: list[Tensor]
    order: int
    size_bytes: int

    @property
    def has_begun(self) -> bool:
        """Whether it has changed the state that later collectives need."""

    def start_at_once(self) -> Work | None:
        """Start without waiting, or return None if that is not possible."""

    def start(self) -> Work | None:
        """Start; may wait. None means that it has ended."""

    def end(self) -> None:
        """Note that what was started has ended without an error."""


class CollectiveQueue:
    """Queue that starts one collective after the other.

    After an error of a collective that had begun, this one and all later ones fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[Collective, QueuedWork]] = deque()
        self._is_starting = False  # in the thread of the queue
        # What is under way: its work, what to do at its end, and its handle if the caller has not
        # the work itself.
        self._work: Work | None = None
        self._collective: Collective | None = None
        self._handle: QueuedWork | None = None
        self._since_s = 0.0
        self._has_callback = False
        self._error: BaseException | None = None
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="inc-queue", daemon=True)
        self._thread.start()

    def start_if_idle(
        self,
        launch: Callable[..., Work],
        tensors: list[Tensor],
        options: Any,
        can_start: Callable[[int], bool],
        mask: int | None,
    ) -> Work | None:
        """Start a collective that needs nothing at its end, or return None if it has to wait.

        Parameters
        ----------
        can_start, mask
            Another condition, which is asked for when nothing is under way, unless ``mask`` is
            None.

        Raises
        ------
        CollectiveError
            An earlier collective failed, or the queue is closed.
        """
        with self._lock:
            # The usual case without further calls: what was under way was such a collective.
            is_usual = self._handle is None and self._collective is None and self._error is None
            if not is_usual or self._pending or self._is_starting:
                self._raise_if_failed()
                if not self._is_idle():
                    return None
            elif self._work is not None and not self._work.is_completed():
                return None
            if mask is not None and not can_start(mask):
                return None
            self._has_callback = False
            self._work = work = launch(tensors, options)
            return work

    def submit(self, collective: Collective) -> Work:
        """Start a collective or let it wait; return its handle.

        Raises
        ------
        CollectiveError
            An earlier collective failed, or the queue is closed.
        """
        with self._lock:
            self._raise_if_failed()
            if self._is_idle():
                try:
                    work = collective.start_at_once()
                except BaseException as error:
                    self._note_failure(collective, error)
                    raise
                if work is not None:
                    self._run(work, collective, None)
                    return work
            handle = QueuedWork(collective.tensors)
            self._pending.append((collective, handle))
            self._wake()
            return handle

    def end_finished(self) -> None:
        """Note the end of a collective whose caller has its work, unless others wait."""
        self._is_busy()  # notes it

    def stalled(self, seconds: float) -> Collective | None:
        """Return the collective under way if it has run for longer than this."""
        collective = self._collective
        is_late = collective is not None and time.monotonic() > self._since_s + seconds
        return collective if is_late else None

    def close(self) -> None:
        """Wait for what is under way, for some seconds, and end the thread."""
        end_s = time.monotonic() + _DRAIN_S
        while self._is_busy() and time.monotonic() < end_s:
            time.sleep(0.001)
        with self._lock:
            self._error = self._error or CollectiveError("the process group was destroyed")
            left = self._take_pending()
        for handle in left:
            handle.finish(self._error)
        self._signals.put(False)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _is_busy(self) -> bool:
        """Return whether something is under way or waits; False after an error."""
        with self._lock, suppress(CollectiveError):
            return self._error is None and not self._is_idle()
        return False

    def _is_idle(self) -> bool:
        """Return whether nothing is under way or waits; the lock is held.

        Raises
        ------
        CollectiveError
            The collective under way has ended with an error.
        """
        if self._is_starting or self._pending or self._handle is not None:
            return False
        if self._work is not None:
            if not self._work.is_completed():
                return False
            if self._collective is not None:
                self._end()
                self._raise_if_failed()
            self._work, self._has_callback = None, False
        return True

    def _run(self, work: Work, collective: Collective, handle: QueuedWork | None) -> None:
        self._work, self._collective, self._handle = work, collective, handle
        self._since_s = time.monotonic()

    def _end(self) -> BaseException | None:
        """Note the end of the collective under way; return its error. The lock is held."""
        work, collective = self._work, self._collective
        self._work = self._collective = self._handle = None
        self._has_callback = False
        if work is None or collective is None:
            return None
        try:
            work.wait()  # has ended: raises its error, if there is one
            collective.end()
        except Exception as error:
            self._note_failure(collective, error)
            return error
        return None

    def _note_failure(self, collective: Collective, error: BaseException) -> None:
        if collective.has_begun and self._error is None:
            self._error = error

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise CollectiveError(f"an earlier collective failed: {self._error}")

    def _wake(self) -> None:
        """Let the thread start what waits, now or after the collective under way."""
        if self._work is None:
            self._signals.put(True)
        elif not self._has_callback:
            self._has_callback = True
            self._work.get_future().add_done_callback(self._signal)

    def _signal(self, _: Any) -> None:
        self._signals.put(True)

    def _serve(self) -> None:
        while self._signals.get():
            try:
                while self._advance():
                    pass
            except Exception:
                _LOG.exception("the queue of collectives failed")

    def _advance(self) -> bool:
        """End the collective under way if it has ended, and start the next one.

        Returns whether there may be more to do at once.
        """
        with self._lock:
            handle, error, failed = self._handle, None, []
            if self._work is not None:
                if not self._work.is_completed():
                    # Callbacks run before the work says that it has ended: look again.
                    self._has_callback = False
                    self._wake()
                    return False
                error = self._end()
            if self._error is not None:
                failed = self._take_pending()
            following = self._pending.popleft() if self._pending else None
            self._is_starting = following is not None
        started = self._start(*following) if following is not None else None
        if handle is not None:
            handle.finish(error)
        if started is not None:
            started()
        for waiting in failed:
            waiting.finish(CollectiveError(f"an earlier collective failed: {self._error}"))
        return following is not None

    def _start(self, collective: Collective, handle: QueuedWork) -> Callable[[], None] | None:
        """Start a collective; return what finishes its handle if it has ended already."""
        work, error = None, None
        try:
            work = collective.start()
            if work is None:
                collective.end()
        except Exception as raised:
            error = raised
        with self._lock:
            self._is_starting = False
            if error is not None:
                self._note_failure(collective, error)
            elif work is not None:
                self._run(work, collective, handle)
                self._wake()
        return None if work is not None else lambda: handle.finish(error)

    def _take_pending(self) -> list[QueuedWork]:
        left = [handle for _, handle in self._pending]
        self._pending.clear()
        return left
