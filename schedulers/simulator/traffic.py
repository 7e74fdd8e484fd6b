"""What gangs sent, by the level of the topology that it went over."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.job import Job
from presage.schedulers.core.topology import Topology


class GangRun(NamedTuple):
    """A job on its devices, until it let go of them.

    Attributes
    ----------
    part : float
        Of its iterations, those that it did there; also if what they did was lost.
    """

    job: Job
    allocations: tuple[Allocation, ...]
    part: float


def bytes_by_level(stays: Iterable[GangRun], topology: Topology) -> dict[str, float] | None:
    """Bytes of gradients over each level of a topology; None if none is known to have sent any.

    In an iteration each edge of a ring all-reduce of m members carries 2 (m - 1) / m times their
    gradients (requirement C4), over the level at which its two devices meet; the ring goes through
    the devices in depth-first order. Nothing is known of jobs whose gradients or iterations are 0.
    """
    known = [stay for stay in stays if len(stay.allocations) > 1 and _gradient_bytes(stay.job)]
    if not known:
        return None
    members = np.array([len(stay.allocations) for stay in known])
    sent = np.array([stay.part * _gradient_bytes(stay.job) for stay in known])
    of_edge = np.repeat(sent * 2 * (members - 1) / members, members)
    ring = np.repeat(np.arange(len(known)), members)
    allocations = chain.from_iterable(stay.allocations for stay in known)
    devices = np.fromiter((allocation.device for allocation in allocations), np.int64, len(ring))
    rank = topology.depth_first.argsort()
    devices = devices[np.lexsort((rank[devices], ring))]
    following, last = np.roll(devices, -1), members.cumsum() - 1
    following[last] = devices[last - members + 1]
    over = np.bincount(topology.meeting(devices, following), of_edge, len(topology.levels))
    return dict(zip(topology.levels, over.tolist(), strict=True))


def _gradient_bytes(job: Job) -> int:
    """Of all its iterations; 0 where it is not known."""
    return 0 if job.features is None else job.iterations * job.features.memory.gradient_bytes
