"""Recent events from the controller's journal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from presage.errors import PresageError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_EVENTS = 50
_RETRY_S = 1.0


class RecentEvents:
    """Follower of the journal in a background thread, from ``start`` to ``stop``."""

    def __init__(self, connect: Callable[[], ClusterClient]) -> None:
        self._connect = connect
        self._events: deque[pb.Event] = deque(maxlen=MAX_EVENTS)
        self._stopped = threading.Event()
        self._client: ClusterClient | None = None
        # A daemon: it may wait for an event indefinitely.
        self._thread = threading.Thread(target=self._follow, name="recent", daemon=True)

    def start(self) -> None:
        """Start to follow the journal."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following the journal."""
        self._stopped.set()
        if self._client is not None:
            self._client.close()
        self._thread.join(5.0)

    def events(self) -> list[pb.Event]:
        """Return the recent events, newest first."""
        return list(self._events)[::-1]

    def _follow(self) -> None:
        with self._connect() as self._client:
            while not self._stopped.is_set():
                try:
                    for event in self._client.watch(after=self._after(self._client)):
                        self._events.append(event)
                except PresageError:  # the page shows the failure
                    self._stopped.wait(_RETRY_S)
                except ValueError:  # the connection was closed
                    return

    def _after(self, client: ClusterClient) -> int:
        """Return the entry after which to continue."""
        newest = client.list(limit=1).last_entry
        known = self._events[-1].entry if self._events else 0
        if known > newest:  # another journal
            self._events.clear()
            known = 0
        return max(known, newest - MAX_EVENTS, 0)
