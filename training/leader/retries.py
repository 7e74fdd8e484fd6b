"""Generations of the same workers that take no step, because two of them cannot connect."""

from __future__ import annotations

import time

from presage.training.generation import Generation

_QUICK_RETRIES, _MOST_DELAY_S = 3, 5.0
_MOST_FAILURES = 3  # generations in which the same two workers cannot connect


class Retries:
    """Delays of generations that repeat one that took no step, and the workers that cause it."""

    def __init__(self) -> None:
        self._count, self._formed_s = 0, 0.0
        self._failures: dict[frozenset[str], set[int]] = {}  # generations, by two workers

    def note_formed(self) -> None:
        """Note that a generation is announced."""
        self._formed_s = time.monotonic()

    def note_unreachable(self, generation: int, reporter: str, peer: str) -> None:
        """Note that a worker could not connect to another one in a generation."""
        self._failures.setdefault(frozenset((reporter, peer)), set()).add(generation)

    def must_wait(self, current: Generation | None, following: Generation) -> bool:
        """Whether to delay a generation, because several with the same members took no step."""
        if current is None or set(current.members) != set(following.members):
            self._reset()
            return False
        if current.cursor != following.cursor:
            self._reset()
        delay_s = min(0.1 * 2.0 ** (self._count - _QUICK_RETRIES), _MOST_DELAY_S)
        if self._count > _QUICK_RETRIES and time.monotonic() < self._formed_s + delay_s:
            return True
        self._count += 1
        return False

    def take_cut_off(self, current: Generation | None) -> tuple[str, str] | None:
        """Return a worker to remove, and the one of a lower rank that it cannot connect to."""
        for pair, generations in self._failures.items():
            if (
                current is not None
                and len(generations) >= _MOST_FAILURES
                and all(current.has_member(worker_id) for worker_id in pair)
            ):
                self._reset()
                other, last = sorted(pair, key=current.rank_of)
                return last, other
        return None

    def _reset(self) -> None:
        self._count = 0
        self._failures.clear()
