"""An answer that is kept for all who look, and asked for again once it is old."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from presage.errors import InvalidJobError, PresageError, UnknownJobError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_REST = 3.0  # times as long as an answer took


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What was answered last.

    Attributes
    ----------
    found : T or None
        None as long as nobody ever answered.
    at_unix_s : float
        When that was.
    failure : str
        Why there is nothing newer; "" if there need not be.
    since_unix_s : float
        Since when it fails; 0 while it does not.
    """

    found: T | None = None
    at_unix_s: float = 0.0
    failure: str = ""
    since_unix_s: float = 0.0


class CachedValue(Generic[T]):
    """Asks when it is read and the last answer is older than ``fresh_s``; several threads may.

    What takes long to answer is asked for less often: most of the time it is not being answered.
    """

    def __init__(self, ask: Callable[[], T], fresh_s: float) -> None:
        self._ask, self._fresh_s = ask, fresh_s
        self._lock = threading.Lock()
        self._again_s = -float("inf")
        self._seen: Seen[T] = Seen()

    def read(self) -> Seen[T]:
        """The answer, or the last one and why there is no other.

        Raises
        ------
        UnknownJobError, InvalidJobError
            It was asked for a job that is not there.
        """
        with self._lock:
            if time.monotonic() > self._again_s:
                self._renew()
            return self._seen

    def last(self) -> Seen[T]:
        """The last answer, however old."""
        return self._seen

    def _renew(self) -> None:
        began_s = time.monotonic()
        try:
            self._seen = Seen(self._ask(), time.time())
        except (UnknownJobError, InvalidJobError):
            raise
        except PresageError as error:
            since = self._seen.since_unix_s or time.time()
            self._seen = replace(self._seen, failure=str(error), since_unix_s=since)
        ended_s = time.monotonic()
        self._again_s = ended_s + max(self._fresh_s, _REST * (ended_s - began_s))


class BoundedCache(Generic[K, T]):
    """What is kept of each key, for the keys that were asked for last."""

    def __init__(self, make: Callable[[K], T], most: int) -> None:
        self._make, self._most = make, most
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, T] = OrderedDict()

    def of(self, key: K) -> T:
        """That of a key, made where there is none yet."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                found = self._make(key)
            self._kept[key] = found
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return found
