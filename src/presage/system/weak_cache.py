"""What is computed of an object once, for as long as there is the object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

Seen = TypeVar("Seen")
Made = TypeVar("Made")


class OnceEach(Generic[Seen, Made]):
    """Calls ``make`` of each object once, and forgets what it made when the object goes.

    By identity: to hash and compare a job of a hundred rows of operators, as a cache by equality
    does, takes longer than to compute most things of it. Objects must be frozen.
    """

    def __init__(self, make: Callable[[Seen], Made]) -> None:
        self._make = make
        self._made: dict[int, tuple[ref[Seen], Made]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def of(self, value: Seen) -> Made:
        """What was made of this very object, or is made of it now."""
        key = id(value)
        known = self._made.get(key)
        if known is None:
            # Bound early: at the interpreter's end this module may go before the object does.
            forget = partial(self._made.pop, key, None)
            known = self._made[key] = ref(value, lambda _: forget()), self._make(value)
        return known[1]
