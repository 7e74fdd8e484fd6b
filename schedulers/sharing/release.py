"""What best-effort jobs of a device give back, so that more is left of it (C4, N5, N6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple


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
    loses least.
    """
    for count in range(len(tenants) + 1):
        found = [
            ended
            for ended in combinations(sorted(tenants), count)
            if sum(one.memory_bytes for one in ended) >= lack_bytes
            and sum(one.compute_milli for one in ended)
            + sum(one.spare_milli for one in tenants if one not in ended)
            >= lack_milli
        ]
        if found:
            best = min(found, key=lambda ended: sum(one.lost_s for one in ended))
            rest = [one for one in tenants if one not in best]
            lack_milli -= sum(one.compute_milli for one in best)
            return Release(
                tuple(one.job_id for one in best),
                tuple(_lowered(lack_milli, rest)),
                sum(one.lost_s for one in best),
            )
    return None


def _lowered(lack_milli: int, tenants: Sequence[Tenant]) -> Iterator[tuple[str, int]]:
    for one in sorted(tenants, key=lambda one: (-one.spare_milli, one.job_id)):
        if lack_milli <= 0:
            return
        given = min(lack_milli, one.spare_milli)
        lack_milli -= given
        yield one.job_id, one.compute_milli - given
