"""Cache of values computed from objects, each kept for as long as its object exists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

Key = TypeVar("Key")
Value = TypeVar("Value")


class WeakCache(Generic[Key, Value]):
    """Cache that computes a value once for each object and drops it with the object.

    Objects are compared by identity: hashing and comparing a job with a hundred operator rows takes
    longer than computing most values from it. Objects must be frozen.

    Parameters
    ----------
    compute : callable
        Computes the value of an object.
    """

    def __init__(self, compute: Callable[[Key], Value]) -> None:
        self._compute = compute
        self._values: dict[int, tuple[ref[Key], Value]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value:
        """Return the cached value of an object; compute it if it is missing."""
        identity = id(key)
        cached = self._values.get(identity)
        if cached is None:
            # Bound early: at interpreter exit this module may be unloaded before the object.
            drop = partial(self._values.pop, identity, None)
            cached = self._values[identity] = ref(key, lambda _: drop()), self._compute(key)
        return cached[1]
