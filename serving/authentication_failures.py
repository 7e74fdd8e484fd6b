"""Failed authentications: logged, and answered the slower the more a peer has had."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from presage.serving.log import log

FORGET_S = 60.0  # without a failure, after which a peer begins again
LONGEST_DELAY_S = 2.0
_FIRST_DELAY_S = 0.01
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
    """Failures by the host that calls come from."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._delayed = 0

    async def note(self, host: str, method: str, request_id: str) -> None:
        """Note a failure, and return when its call may be answered."""
        delay_s = self.delay_s(host, method, request_id)
        if self._delayed >= _MOST_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1

    def delay_s(self, host: str, method: str, request_id: str) -> float:
        """Log a failure; return how long its answer is to be delayed."""
        now_s = self._clock()
        peer = self._peers.pop(host, None) or _Peer()
        if now_s - peer.last_s > FORGET_S:
            peer.failures = 0
        peer.failures, peer.last_s, peer.unlogged = peer.failures + 1, now_s, peer.unlogged + 1
        self._peers[host] = peer
        if len(self._peers) > _MOST_PEERS:
            self._peers.popitem(last=False)
        if now_s - peer.logged_s >= _LOG_S:
            log(
                logging.WARNING, "authentication failed", client=host, method=method,
                request_id=request_id, failures=peer.unlogged,
            )  # fmt: skip
            peer.logged_s, peer.unlogged = now_s, 0
        return min(LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(peer.failures - 1, 16))
