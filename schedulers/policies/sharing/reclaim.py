"""What best-effort jobs of a device give back, so that more is left of it (C4, N5, N6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations
from math import comb
from typing import NamedTuple

MOST_SETS = 5_000  # of tenants that are compared


class Tenant(NamedTuple):
    """A best-effort job on a device.

    Attributes
    ----------
    compute_milli, memory_bytes : int
        What it has of the device.
    least_milli : int
        As little compute as it can be left with (N9); all that it has if it cannot be lowered.
    lost_s : float
        Loss if it is evicted: running time since its checkpoint, and what saving and restarting
        take, on each of its devices.
    """

    job_id: str
    compute_milli: int
    memory_bytes: int
    least_milli: int
    lost_s: float

    @property
    def spare_milli(self) -> int:
        """Compute by which it can be shrunk."""
        return max(0, self.compute_milli - self.least_milli)

    @property
    def kept_milli(self) -> int:
        """Compute that can only be reclaimed by evicting it."""
        return self.compute_milli - self.spare_milli


class Release(NamedTuple):
    """Evictions and shrinkages that free capacity of a device.

    Attributes
    ----------
    ended : tuple of str
        Jobs that are evicted: they save their state and wait again.
    lowered : tuple of (str, int)
        Jobs that are shrunk, and the thousandths that they keep.
    lost_s : float
        Total loss of the evicted jobs.
    """

    ended: tuple[str, ...]
    lowered: tuple[tuple[str, int], ...]
    lost_s: float

    @property
    def cost(self) -> tuple[int, float, int]:
        """Sort key: fewest evictions, then least loss, then fewest shrunk jobs."""
        return len(self.ended), self.lost_s, len(self.lowered)


def release(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> Release | None:
    """Return how to free capacity of a device; None if that is impossible.

    Jobs are shrunk as far as possible (N5), those first that can give most. Only if that is not
    enough some are evicted (N6): the smallest set, and of these the one with the least loss; an
    approximation of it if there are more than ``MOST_SETS`` sets.
    """
    if sum(one.memory_bytes for one in tenants) < lack_bytes:
        return None
    if sum(one.compute_milli for one in tenants) < lack_milli:
        return None
    ended = _ended(lack_milli, lack_bytes, sorted(tenants))
    rest = [one for one in tenants if one not in ended]
    return Release(
        tuple(one.job_id for one in ended),
        tuple(_lowered(lack_milli - sum(one.compute_milli for one in ended), rest)),
        sum(one.lost_s for one in ended),
    )


def _ended(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Return the smallest set of evictions that is enough, if all other jobs are shrunk."""
    lack_milli -= sum(one.spare_milli for one in tenants)  # the rest needs evictions
    for count in range(_fewest(lack_milli, lack_bytes, tenants), len(tenants) + 1):
        if comb(len(tenants), count) > MOST_SETS:
            return _one_by_one(lack_milli, lack_bytes, tenants)
        enough = [
            ended
            for ended in combinations(tenants, count)
            if sum(one.memory_bytes for one in ended) >= lack_bytes
            and sum(one.kept_milli for one in ended) >= lack_milli
        ]
        if enough:
            return min(enough, key=lambda ended: sum(one.lost_s for one in ended))
    raise AssertionError("all of them together were enough")


def _fewest(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> int:
    """Return a lower bound of the number of evictions."""
    memory = accumulate(sorted((one.memory_bytes for one in tenants), reverse=True), initial=0)
    compute = accumulate(sorted((one.kept_milli for one in tenants), reverse=True), initial=0)
    both = zip(memory, compute, strict=True)
    return next(n for n, (has, kept) in enumerate(both) if has >= lack_bytes and kept >= lack_milli)


def _one_by_one(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Return an approximate set: jobs that give most until it is enough, minus needless ones."""

    def gives(one: Tenant) -> float:
        of_memory = one.memory_bytes / lack_bytes if lack_bytes > 0 else 0.0
        return of_memory + (one.kept_milli / lack_milli if lack_milli > 0 else 0.0)

    def enough(some: Sequence[Tenant]) -> bool:
        milli = sum(one.kept_milli for one in some)
        return milli >= lack_milli and sum(one.memory_bytes for one in some) >= lack_bytes

    in_order = sorted(tenants, key=gives, reverse=True)
    count = next(n for n in range(len(in_order) + 1) if enough(in_order[:n]))
    ended = in_order[:count]
    for one in sorted(ended, key=lambda one: -one.lost_s):
        without = [other for other in ended if other is not one]
        if enough(without):
            ended = without
    return tuple(ended)


def _lowered(lack_milli: int, tenants: Sequence[Tenant]) -> Iterator[tuple[str, int]]:
    for one in sorted(tenants, key=lambda one: (-one.spare_milli, one.job_id)):
        if lack_milli <= 0:
            return
        given = min(lack_milli, one.spare_milli)
        lack_milli -= given
        yield one.job_id, one.compute_milli - given
