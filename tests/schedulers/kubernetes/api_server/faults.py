"""Faults that tests inject between a client and the fake API server."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Literal


@dataclass
class Fault:
    """Fault that applies to the next ``times`` matching requests.

    Parameters
    ----------
    method : str
        HTTP method ("PATCH") or Kubernetes verb ("patch", "list", "watch"); "*" for all.
    path : str
        Regular expression that is searched in the path without its query.
    drop : "before" or "after", optional
        Reset the connection before the request is executed, or after it without a response.
    status : int, optional
        Reject the request with this status, with ``Retry-After`` if ``retry_after_s`` is set.
    delay_s : float
        Delay before the request is executed.
    """

    method: str
    path: str
    times: int = 1
    drop: Literal["before", "after"] | None = None
    status: int | None = None
    retry_after_s: int | None = None
    delay_s: float = 0.0


NO_FAULT = Fault("*", "", times=0)


class Faults:
    """Pending faults."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._pending.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()

    def take(self, methods: tuple[str, str], path: str) -> Fault:
        """Return the oldest matching fault, or one without effect."""
        with self._lock:
            for fault in self._pending:
                if fault.method in ("*", *methods) and re.search(fault.path, path):
                    fault.times -= 1
                    if not fault.times:
                        self._pending.remove(fault)
                    return fault
        return NO_FAULT
