"""What a gang's gradients cost on their way around its ring (requirements C2 and C4)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from presage.schedulers.topology import Topology


def edge_bytes(members: int, gradient_bytes: float) -> float:
    """What each member of a ring sends to the next one in a step (muds of C4): 0 of one alone."""
    return 2 * (members - 1) / members * gradient_bytes


def traffic_bytes(
    topology: Topology, devices: Iterable[int], gradient_bytes: float
) -> dict[str, float]:
    """Bytes that a step moves through vertices of each level that a ring's edges have in common.

    The ring goes through the devices in depth-first order.
    """
    ring = _ring(topology, devices)
    moved = dict.fromkeys(topology.levels, 0.0)
    each = edge_bytes(len(ring), gradient_bytes)
    for place in topology.meeting(ring, np.roll(ring, -1)).tolist():
        if place >= 0:
            moved[topology.levels[place]] += each
    return moved


def communication_cost(topology: Topology, devices: Iterable[int], gradient_bytes: float) -> float:
    """C(M) of requirement C2: over the edges of the ring, msc times muds."""
    ring = _ring(topology, devices)
    distance = topology.distance(ring, np.roll(ring, -1)).sum()
    return float(distance) * edge_bytes(len(ring), gradient_bytes)


def _ring(topology: Topology, devices: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    in_order = topology.depth_first
    place = np.empty_like(in_order)
    place[in_order] = np.arange(len(in_order))
    chosen = np.array(sorted(devices), np.int64)
    return chosen[place[chosen].argsort()]
