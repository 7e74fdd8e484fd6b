"""Failed authentications: counted, logged, and answered ever later."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict

from presage.serving.log import log

_FORGET_S = 60.0
_MOST_PEERS = 1024
_FIRST_DELAY_S, _MOST_DELAY_S = 0.1, 2.0


class FailedLogins:
    """Failures of each peer, until it has made none for a minute.

    A caller with the right credentials is never delayed, also where it shares the peer's address.
    """

    def __init__(self, server: str) -> None:
        self._server = server  # for the log
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self.total = 0

    def add(self, peer: str, reason: str) -> float:
        """Count a failure; the seconds after which it is to be answered.

        The first, second, fourth, eighth failure of a peer and so on are logged.
        """
        now_s = time.monotonic()
        with self._lock:
            self.total += 1
            count, last_s = self._peers.pop(peer, (0, now_s))
            count = 1 if now_s - last_s > _FORGET_S else count + 1
            self._peers[peer] = (count, now_s)
            if len(self._peers) > _MOST_PEERS:
                self._peers.popitem(last=False)
        if count & (count - 1) == 0:
            log(
                logging.WARNING, "authentication failed",
                server=self._server, peer=peer, failures=count, reason=reason,
            )  # fmt: skip
        return min(_MOST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(count - 1, 10))
