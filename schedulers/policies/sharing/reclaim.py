"""Capacity that best-effort jobs of a device can give back (C4, N5, N6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations
from math import comb
from typing import NamedTuple

MOST_SETS = 5_000  # sets of tenants that are compared


class Tenant(NamedTuple):
    """Best-effort job on a device.

    Attributes
    ----------
    compute_milli, memory_bytes : int
        Its share of the device.
    least_milli : int
        Least compute that it keeps (N9); its present compute if it cannot be shrunk.
    lost_s : float
        Device-seconds lost by an eviction: run time since the last checkpoint, and the time to save
        and to restart, on each of its devices.
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
    def unsparable_milli(self) -> int:
        """Compute that can only be reclaimed by evicting it."""
        return self.compute_milli - self.spare_milli


class Release(NamedTuple):
    """Evictions and shrinkages that free capacity of a device.

    Attributes
    ----------
    evicted : tuple of str
        Evicted jobs: they save their state and return to the queue.
    shrunk : tuple of (str, int)
        Shrunk jobs, with the thousandths of the device that they keep.
    lost_s : float
        Total loss of the evicted jobs.
    """

    evicted: tuple[str, ...]
    shrunk: tuple[tuple[str, int], ...]
    lost_s: float

    @property
    def cost(self) -> tuple[int, float, int]:
        """Sort key: fewest evictions, then least loss, then fewest shrunk jobs."""
        return len(self.evicted), self.lost_s, len(self.shrunk)


def release(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> Release | None:
    """Return how to free capacity of a device; None if that is impossible.

    Jobs are shrunk as far as possible (N5), the job that can free most first. If that is not
    enough, jobs are evicted (N6): the smallest set, and of several the set with the least loss; an
    approximation of it if there are more than ``MOST_SETS`` sets.
    """
    if sum(tenant.memory_bytes for tenant in tenants) < lack_bytes:
        return None
    if sum(tenant.compute_milli for tenant in tenants) < lack_milli:
        return None
    evicted = _evicted(lack_milli, lack_bytes, sorted(tenants))
    rest = [tenant for tenant in tenants if tenant not in evicted]
    return Release(
        tuple(tenant.job_id for tenant in evicted),
        tuple(_shrunk(lack_milli - sum(tenant.compute_milli for tenant in evicted), rest)),
        sum(tenant.lost_s for tenant in evicted),
    )


def _evicted(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Return the smallest set of evictions that is enough, if all other jobs are shrunk."""
    lack_milli -= sum(tenant.spare_milli for tenant in tenants)  # the rest needs evictions
    if lack_milli <= 0 and lack_bytes <= 0:
        return ()
    for count in range(_fewest(lack_milli, lack_bytes, tenants), len(tenants) + 1):
        if comb(len(tenants), count) > MOST_SETS:
            return _greedy_set(lack_milli, lack_bytes, tenants)
        enough = [
            evicted
            for evicted in combinations(tenants, count)
            if sum(tenant.memory_bytes for tenant in evicted) >= lack_bytes
            and sum(tenant.unsparable_milli for tenant in evicted) >= lack_milli
        ]
        if enough:
            return min(enough, key=lambda evicted: sum(tenant.lost_s for tenant in evicted))
    raise AssertionError("evicting all jobs is enough")


def _fewest(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> int:
    """Return a lower bound of the number of evictions."""
    memory = accumulate(
        sorted((tenant.memory_bytes for tenant in tenants), reverse=True), initial=0
    )
    compute = accumulate(
        sorted((tenant.unsparable_milli for tenant in tenants), reverse=True), initial=0
    )
    both = zip(memory, compute, strict=True)
    return next(n for n, (has, kept) in enumerate(both) if has >= lack_bytes and kept >= lack_milli)


def _greedy_set(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Return an approximate set: jobs that free most until it is enough, minus needless jobs."""

    def gain(tenant: Tenant) -> float:
        of_memory = tenant.memory_bytes / lack_bytes if lack_bytes > 0 else 0.0
        return of_memory + (tenant.unsparable_milli / lack_milli if lack_milli > 0 else 0.0)

    def is_enough(subset: Sequence[Tenant]) -> bool:
        milli = sum(tenant.unsparable_milli for tenant in subset)
        return milli >= lack_milli and sum(tenant.memory_bytes for tenant in subset) >= lack_bytes

    in_order = sorted(tenants, key=gain, reverse=True)
    count = next(n for n in range(len(in_order) + 1) if is_enough(in_order[:n]))
    evicted = in_order[:count]
    for tenant in sorted(evicted, key=lambda tenant: -tenant.lost_s):
        without = [other for other in evicted if other is not tenant]
        if is_enough(without):
            evicted = without
    return tuple(evicted)


def _shrunk(lack_milli: int, tenants: Sequence[Tenant]) -> Iterator[tuple[str, int]]:
    for tenant in sorted(tenants, key=lambda tenant: (-tenant.spare_milli, tenant.job_id)):
        if lack_milli <= 0:
            return
        freed = min(lack_milli, tenant.spare_milli)
        lack_milli -= freed
        yield tenant.job_id, tenant.compute_milli - freed
