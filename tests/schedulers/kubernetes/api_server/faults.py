"""What a test makes go wrong between a client and the API server."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Literal


@dataclass
class Fault:
    """Something that happens to the next ``times`` requests that it is for.

    Parameters
    ----------
    method : str
        An HTTP method ("PATCH") or a verb of Kubernetes ("patch", "list", "watch"); "*" for all.
    path : str
        Regular expression, searched for in the path without its query.
    drop : "before" or "after", optional
        Reset the connection: before anything was done, or with all done and no answer given.
    status : int, optional
        Answer this code and do nothing, with ``Retry-After`` where ``retry_after_s`` is given.
    delay_s : float
        Wait so long before anything else.
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
    """Those that are still to happen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._left.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._left.clear()

    def take(self, methods: tuple[str, str], path: str) -> Fault:
        """The oldest one that is for this request; one that does nothing where there is none."""
        with self._lock:
            for fault in self._left:
                if fault.method in ("*", *methods) and re.search(fault.path, path):
                    fault.times -= 1
                    if not fault.times:
                        self._left.remove(fault)
                    return fault
        return NO_FAULT
