"""Failed authentications: counted, logged, and answered the slower the more a host has had.

A caller with the right credentials is never delayed, also where it shares the host.
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

FORGET_S = 60.0  # without a failure, after which a peer begins again
LONGEST_DELAY_S = 2.0
_FIRST_DELAY_S = 0.1
_LOG_S = 1.0  # between two lines of one peer
_MOST_PEERS = 4096
_MOST_DELAYED = 256  # calls at once; a call that is delayed takes memory


@dataclass(slots=True)
class _Peer:
    failures: int = 0
    last_s: float = 0.0
    logged_s: float = -_LOG_S
    unlogged: int = 0


class AuthenticationFailures:
    """Failures by the host that calls come from.

    Attributes
    ----------
    total : int
        Failures since the server started.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # servers of HTTP have threads
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._delayed = 0
        self.total = 0

    async def delay(self, host: str, **noted: str) -> None:
        """Note a failure, and return when its call may be answered."""
        delay_s = self.delay_s(host, **noted)
        if self._delayed >= _MOST_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1

    def delay_s(self, host: str, **noted: str) -> float:
        """Log a failure with these fields; return how long its answer is to be delayed."""
        now_s = self._clock()
        with self._lock:
            self.total += 1
            peer = self._peers.pop(host, None) or _Peer()
            if now_s - peer.last_s > FORGET_S:
                peer.failures = 0
            peer.failures, peer.last_s, peer.unlogged = peer.failures + 1, now_s, peer.unlogged + 1
            self._peers[host] = peer
            if len(self._peers) > _MOST_PEERS:
                self._peers.popitem(last=False)
            failures = 0
            if now_s - peer.logged_s >= _LOG_S:
                failures, peer.logged_s, peer.unlogged = peer.unlogged, now_s, 0
        if failures:
            fields: dict[str, Any] = {"client": host, "failures": failures, **noted}
            log(logging.WARNING, "authentication failed", **fields)
        return min(LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(peer.failures - 1, 16))
