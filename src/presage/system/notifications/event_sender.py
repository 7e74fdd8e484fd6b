"""Sending of events without delaying the program that reports them."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence

from presage.system.notifications.cloud_event import CloudEvent
from presage.system.notifications.webhook import PAUSES_S, Webhook
from presage.system.text.printable import error_line

DELIVERED, FAILED, DROPPED = "delivered", "failed", "dropped"
MAX_QUEUED = 1_000
COMMAND_S = 5.0  # that a command waits for the delivery of its event
_COMMAND_PAUSES_S = (0.5, 2.0)

OnResult = Callable[[str, CloudEvent, str], object]


def _ignore(_result: str, _event: CloudEvent, _problem: str) -> None:
    """Do nothing with the result of an event."""


class EventSender:
    """Bounded queue of events, and one daemon thread that delivers them in order.

    Parameters
    ----------
    webhook : Webhook
    on_result : callable
        Called once per event with ``DELIVERED``, ``FAILED`` or ``DROPPED``, the event, and why it
        was not delivered. The first two are called in the thread, ``DROPPED`` in :meth:`put`.
    max_queued : int
        Number of waiting events above which further ones are dropped.
    pauses_s : sequence of float
        Pauses before each repetition of a request.
    """

    def __init__(
        self,
        webhook: Webhook,
        on_result: OnResult = _ignore,
        *,
        max_queued: int = MAX_QUEUED,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._webhook, self._on_result, self._pauses_s = webhook, on_result, pauses_s
        self._queue: queue.Queue[CloudEvent] = queue.Queue(max_queued)
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def put(self, event: CloudEvent) -> None:
        """Queue an event; return at once. It is dropped if the queue is full."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._on_result(DROPPED, event, f"{self._queue.maxsize} events are waiting")

    def flush(self, timeout_s: float) -> bool:
        """Wait until all events have a result, at most ``timeout_s``; return whether they have."""
        end_s = time.monotonic() + timeout_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._queue.all_tasks_done.wait(left_s)
        return True

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            try:
                problem = self._webhook.deliver(event, self._pauses_s)
            except Exception as error:  # a defect must not end the thread
                problem = f"{type(error).__name__}: {error}"
            self._on_result(FAILED if problem else DELIVERED, event, problem)
            self._queue.task_done()


def send_from_command(webhook: Webhook | None, event: CloudEvent) -> bool:
    """Send the event of a command; wait ``COMMAND_S`` at most, then print a warning of one line.

    Returns
    -------
    bool
        Whether the event was delivered, or there is no webhook.
    """
    if webhook is None:
        return True
    results: list[tuple[str, str]] = []
    sender = EventSender(
        webhook,
        lambda result, _, problem: results.append((result, problem)),
        pauses_s=_COMMAND_PAUSES_S,
    )
    sender.put(event)
    sender.flush(COMMAND_S)
    result, problem = results[0] if results else (FAILED, f"no answer within {COMMAND_S:g} s")
    if result != DELIVERED:
        text = f"event {event.type} was not delivered to {webhook.origin} ({problem})"
        sys.stderr.write(f"warning: {error_line(text)}\n")
    return result == DELIVERED
