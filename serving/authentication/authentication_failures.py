"""Count, log and slow down failed authentications per client host.

The delay of the response grows with the failures of the host. Callers with valid credentials are
never delayed, even on the same host.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from presage.serving.server.log import log

FAILURE_RESET_S = 60.0  # time without a failure after which the count of a peer is reset
LONGEST_DELAY_S = 2.0
FIRST_DELAY_S = 0.1
_LOG_S = 1.0  # minimum interval between two log lines about one peer
_MAX_PEERS = 4096
MAX_DELAYED = 256  # concurrent delayed calls; each occupies memory


@dataclass(slots=True)
class _Peer:
    failures: int = 0
    last_s: float = 0.0
    logged_s: float = -_LOG_S
    unlogged: int = 0


class AuthenticationFailures:
    """Authentication failures by client host.

    Attributes
    ----------
    total : int
        Failures since the server started.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # the HTTP servers use threads
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._delayed = 0
        self.total = 0

    async def delay(self, host: str, **fields: str) -> None:
        """Record a failure and wait until its call may be answered."""
        delay_s = self.record_failure(host, **fields)
        if self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1

    def record_failure(self, host: str, **fields: str) -> float:
        """Count a failure and log it with these fields; return the delay of its response in s."""
        now_s = self._clock()
        with self._lock:
            self.total += 1
            peer = self._peers.pop(host, None) or _Peer()
            if now_s - peer.last_s > FAILURE_RESET_S:
                peer.failures = 0
            peer.failures, peer.last_s, peer.unlogged = peer.failures + 1, now_s, peer.unlogged + 1
            self._peers[host] = peer
            if len(self._peers) > _MAX_PEERS:
                self._peers.popitem(last=False)
            failures = 0
            if now_s - peer.logged_s >= _LOG_S:
                failures, peer.logged_s, peer.unlogged = peer.unlogged, now_s, 0
        if failures:
            logged: dict[str, Any] = {"client": host, "failures": failures, **fields}
            log(logging.WARNING, "authentication failed", **logged)
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(peer.failures - 1, 16))
