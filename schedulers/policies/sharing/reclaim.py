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
        What is lost if it is ended: running time since it saved, and what saving and restarting
        take, on each of its devices.
    """

    job_id: str
    compute_milli: int
    memory_bytes: int
    least_milli: int
    lost_s: float

    @property
    def spare_milli(self) -> int:
        """What it can be lowered by."""
        return max(0, self.compute_milli - self.least_milli)

    @property
    def kept_milli(self) -> int:
        """What it can be left with at least: it is had by ending it alone."""
        return self.compute_milli - self.spare_milli


class Release(NamedTuple):
    """Who is ended, and who is lowered to what.

    Attributes
    ----------
    ended : tuple of str
        Jobs that save their state and end; they wait again.
    lowered : tuple of (str, int)
        Jobs and the thousandths that they are left with.
    lost_s : float
        Of those that are ended, together.
    """

    ended: tuple[str, ...]
    lowered: tuple[tuple[str, int], ...]
    lost_s: float

    @property
    def cost(self) -> tuple[int, float, int]:
        """Smallest is best: fewest ended, least lost, fewest lowered."""
        return len(self.ended), self.lost_s, len(self.lowered)


def release(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> Release | None:
    """How a device comes to have so much more left; None if it cannot.

    Compute is taken by lowering jobs as far as they can be (N5), those first that can give most.
    Only if that is not enough are some ended (N6): the smallest set, and of these the one that
    loses least; of more than ``MOST_SETS``, one that is nearly so.
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
    """The smallest set that is enough, beside what the others can be lowered by."""
    lack_milli -= sum(one.spare_milli for one in tenants)  # the rest is had by ending alone
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
    """How many have to be ended at least: those that give most of either would not be enough."""
    memory = accumulate(sorted((one.memory_bytes for one in tenants), reverse=True), initial=0)
    compute = accumulate(sorted((one.kept_milli for one in tenants), reverse=True), initial=0)
    both = zip(memory, compute, strict=True)
    return next(n for n, (has, kept) in enumerate(both) if has >= lack_bytes and kept >= lack_milli)


def _one_by_one(lack_milli: int, lack_bytes: int, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Of too many sets to try all: those that give most until it is enough, less those in vain."""

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
