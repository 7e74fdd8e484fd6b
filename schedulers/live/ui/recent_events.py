"""What happened last, as the controller's journal tells it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from presage.errors import PresageError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb

MOST = 50
_PAUSE_S = 1.0  # before it is tried again


class RecentEvents:
    """Follows the journal in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, connect: Callable[[], ClusterClient]) -> None:
        self._connect = connect
        self._events: deque[pb.Event] = deque(maxlen=MOST)
        self._stopped = threading.Event()
        self._client: ClusterClient | None = None
        # It may wait for an event for ever: the process need not wait for it.
        self._thread = threading.Thread(target=self._follow, name="recent", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._stopped.set()
        if self._client is not None:
            self._client.close()
        self._thread.join(5.0)

    def events(self) -> list[pb.Event]:
        """The last ones, the newest first."""
        return list(self._events)[::-1]

    def _follow(self) -> None:
        with self._connect() as self._client:
            while not self._stopped.is_set():
                try:
                    for event in self._client.watch(after=self._after(self._client)):
                        self._events.append(event)
                except PresageError:  # the page says what it is
                    self._stopped.wait(_PAUSE_S)
                except ValueError:  # the connection was closed
                    return

    def _after(self, client: ClusterClient) -> int:
        """The entry to go on behind."""
        newest = client.list(most=1).last_entry
        known = self._events[-1].entry if self._events else 0
        if known > newest:  # another journal
            self._events.clear()
            known = 0
        return max(known, newest - MOST, 0)
