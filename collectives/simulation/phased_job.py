"""Simulated job: when the AllReduces of an iteration are ready, and how long each of them takes."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from presage.collectives.core.costs import Link, inc_s, ring_s, tree_s
from presage.collectives.core.demand import Call


class Way(enum.Enum):
    """Algorithm of an AllReduce."""

    RING = "ring"
    TREE = "tree"
    INC = "inc"


COSTS = {Way.RING: ring_s, Way.TREE: tree_s, Way.INC: inc_s}  # requirement I9


@dataclass(frozen=True, slots=True)
class PhasedJob:
    """Job that repeats the same AllReduces, one at a time, as its gradients become ready.

    An iteration begins when the last AllReduce of the previous one has ended. An AllReduce starts
    when its gradients are ready and the one before it has ended.

    Attributes
    ----------
    job_id : str
        Unique id.
    ranks : int
        Number of ranks, at least 1.
    switches : tuple of str
        Switches that aggregate for the job; empty if none does.
    link : Link
        Slowest link between the ranks.
    calls : tuple of Call
        AllReduces of an iteration. ``offset_s`` is the time of computation from the start of the
        iteration until the gradients are ready; it does not decrease.
    start_s : float
        Start of the first iteration.
    jitter : float
        Standard deviation of the logarithm of the computation time of an iteration.
    measured_over_cost : tuple of (Way, float)
        Measured duration over that of I9, of ways for which it is not 1.

    Raises
    ------
    ValueError
        A value is out of range, or not finite.
    """

    job_id: str
    ranks: int
    switches: tuple[str, ...]
    link: Link
    calls: tuple[Call, ...]
    start_s: float = 0.0
    jitter: float = 0.0
    measured_over_cost: tuple[tuple[Way, float], ...] = ()

    def __post_init__(self) -> None:
        name = f"job {self.job_id!r}"
        if self.ranks < 1:
            raise ValueError(f"{name}: ranks={self.ranks}, must be at least 1")
        if not self.calls or any(call.size_bytes < 0 for call in self.calls):
            raise ValueError(f"{name}: at least one AllReduce is needed, with a size of 0 or more")
        ready_s = [0.0, *(call.offset_s for call in self.calls)]
        if not math.isfinite(ready_s[-1]) or not all(
            a <= b for a, b in itertools.pairwise(ready_s)
        ):
            raise ValueError(f"{name}: offsets must be finite, at least 0 and must not decrease")
        if not (0 <= self.jitter < math.inf and math.isfinite(self.start_s)):
            raise ValueError(f"{name}: jitter={self.jitter}, start_s={self.start_s}")
        if self.solo_s(Way.RING) <= 0:
            raise ValueError(f"{name}: an iteration takes no time")

    def duration_s(self, way: Way, position: int) -> float:
        """Return the duration of an AllReduce of an iteration."""
        factor = dict(self.measured_over_cost).get(way, 1.0)
        return factor * COSTS[way](self.ranks, self.calls[position].size_bytes, self.link)

    def without_inc(self, position: int) -> Way:
        """Return the faster one of ring and tree."""
        ring, tree = (self.duration_s(way, position) for way in (Way.RING, Way.TREE))
        return Way.RING if ring <= tree else Way.TREE

    def solo_s(self, way: Way | None) -> float:
        """Return the time of an iteration without jitter; None is the faster of ring and tree."""
        end_s = 0.0
        for position, call in enumerate(self.calls):
            chosen = self.without_inc(position) if way is None else way
            end_s = max(end_s, call.offset_s) + self.duration_s(chosen, position)
        return end_s


def overlapping_calls(
    compute_s: float, sizes_bytes: Sequence[int], backward: float = 2 / 3
) -> tuple[Call, ...]:
    """Return AllReduces whose gradients become ready at an even pace in the backward pass.

    Parameters
    ----------
    compute_s : float
        Time of computation of an iteration.
    sizes_bytes : sequence of int
        Size of each AllReduce, in the order in which DDP starts them.
    backward : float
        Share of the backward pass in the computation.
    """
    total = sum(sizes_bytes) or 1
    done = itertools.accumulate(sizes_bytes)
    return tuple(
        Call(compute_s * (1 - backward * (1 - part / total)), size)
        for part, size in zip(done, sizes_bytes, strict=True)
    )
