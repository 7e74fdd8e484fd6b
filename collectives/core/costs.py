"""Durations of an AllReduce by the way in which it runs (requirement I9).

``ranks`` is N, ``size_bytes`` is B. A link has a latency a and a bandwidth bw. All results are in
seconds. A job of one rank exchanges nothing, so each way takes no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """Slowest link between the ranks of a job.

    Attributes
    ----------
    latency_s : float
        Latency of one message, at least 0.
    bandwidth_bytes_per_s : float
        Bandwidth, above 0.
    """

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise ValueError(f"latency_s={self.latency_s}, must be finite and at least 0")
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s={self.bandwidth_bytes_per_s}, must be above 0")

    def transfer_s(self, size_bytes: float) -> float:
        """Return the time that ``size_bytes`` take without the latency."""
        return size_bytes / self.bandwidth_bytes_per_s


def ring_s(ranks: int, size_bytes: float, link: Link) -> float:
    """Return the duration of a ring AllReduce."""
    if ranks == 1:
        return 0.0
    share = 2 * (ranks - 1) / ranks
    return 2 * (ranks - 1) * link.latency_s + share * link.transfer_s(size_bytes)


def tree_s(ranks: int, size_bytes: float, link: Link) -> float:
    """Return the duration of a tree AllReduce."""
    if ranks == 1:
        return 0.0
    return 2 * math.log2(ranks) * link.latency_s + 2 * link.transfer_s(size_bytes)


def inc_s(ranks: int, size_bytes: float, link: Link) -> float:
    """Return the duration of an AllReduce that the switch computes."""
    if ranks == 1:
        return 0.0
    return 2 * link.latency_s + link.transfer_s(size_bytes)


def time_saved_s(ranks: int, size_bytes: float, link: Link) -> float:
    """Return how much shorter the AllReduce is on the switch than by ring: the score of I8."""
    return ring_s(ranks, size_bytes, link) - inc_s(ranks, size_bytes, link)
