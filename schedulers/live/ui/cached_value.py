"""Rate-limited caches of values from the controller, shared by all page viewers."""

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
_PAUSE_FACTOR = 3.0  # pause between fetches, relative to the duration of a fetch


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """Last fetched value, and why there is no newer one.

    Attributes
    ----------
    value : T or None
        None if no fetch has succeeded yet.
    at_unix_s : float
        When it was fetched.
    failure : str
        Why the last fetch failed; "" if it succeeded.
    failing_since_unix_s : float
        When the fetches began to fail; 0 while they succeed.
    """

    value: T | None = None
    at_unix_s: float = 0.0
    failure: str = ""
    failing_since_unix_s: float = 0.0


class CachedValue(Generic[T]):
    """Cached value that is fetched again when it is read after ``max_age_s``; thread-safe.

    A slow fetch is repeated less often: at least three times its duration passes between fetches.
    """

    def __init__(self, fetch: Callable[[], T], max_age_s: float) -> None:
        self._fetch, self._max_age_s = fetch, max_age_s
        self._lock = threading.Lock()
        self._next_s = -float("inf")
        self._snapshot: Snapshot[T] = Snapshot()

    def read(self) -> Snapshot[T]:
        """Return the value, fetched again if it is due; on failure the last value with the reason.

        Raises
        ------
        UnknownJobError, InvalidJobError
            The value is of a job that does not exist.
        """
        with self._lock:
            if time.monotonic() > self._next_s:
                self._renew()
            return self._snapshot

    def last(self) -> Snapshot[T]:
        """Return the last value, of any age."""
        return self._snapshot

    def _renew(self) -> None:
        began_s = time.monotonic()
        try:
            self._snapshot = Snapshot(self._fetch(), time.time())
        except (UnknownJobError, InvalidJobError):
            raise
        except PresageError as error:
            since = self._snapshot.failing_since_unix_s or time.time()
            self._snapshot = replace(self._snapshot, failure=str(error), failing_since_unix_s=since)
        ended_s = time.monotonic()
        self._next_s = ended_s + max(self._max_age_s, _PAUSE_FACTOR * (ended_s - began_s))


class BoundedCache(Generic[K, T]):
    """Cache of the values of the most recently used keys; thread-safe."""

    def __init__(self, make: Callable[[K], T], capacity: int) -> None:
        self._make, self._capacity = make, capacity
        self._lock = threading.Lock()
        self._values: OrderedDict[K, T] = OrderedDict()

    def get(self, key: K) -> T:
        """Return the value of a key; make it if there is none."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is None:
                value = self._make(key)
            self._values[key] = value
            if len(self._values) > self._capacity:
                self._values.popitem(last=False)
            return value
