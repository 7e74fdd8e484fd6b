"""Use of in-network computing by the plans of a gang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.job_switches import Switch, job_switches, switches
from presage.schedulers.core.cluster import Cluster


class SwitchSharing:
    """Switches of a cluster and the gangs that use them.

    In a ring of N nodes each sends ``2 (N - 1) / N`` times the gradients, to a switch once
    (requirement I9), so an AllReduce on switches takes ``N / (2 (N - 1))`` of the time by ring. Of
    a switch with s slots that u other gangs use, a gang is expected to get ``min(1, s / (u + 1))``
    of the time. That is cautious: gangs that compute in turn get more.

    Parameters
    ----------
    gangs : Mapping of str to sequence of Allocation
        Devices of the other jobs with several devices, by job.
    """

    def __init__(self, cluster: Cluster, gangs: Mapping[str, Sequence[Allocation]]) -> None:
        self._cluster, self._gangs = cluster, gangs
        self._levels = sorted({name.split("/")[0] for name, _ in switches(cluster.topology)})

    def cost_factor(self, devices: NDArray[np.int64]) -> float:
        """Return the communication cost of a gang on some devices over that by ring."""
        if not self._levels:
            return 1.0
        nodes, used = self._nodes_and_switches(devices.tolist())
        if not used:
            return 1.0
        share = min(min(1.0, one.slots / (self._users.get(one, 0) + 1)) for one in used)
        return 1 - share * (1 - nodes / (2 * (nodes - 1)))

    def places_below(self, devices: NDArray[np.int64], members: int) -> Iterator[NDArray[np.int64]]:
        """Yield the places below each switch that has enough of them, but not all.

        Parameters
        ----------
        devices : ndarray of int of shape (places,)
            Device of each place.
        """
        topology = self._cluster.topology
        for level in self._levels:
            above = topology.ancestor(level)[devices]
            for number in np.unique(above[above >= 0]).tolist():
                below = np.flatnonzero(above == number)
                if topology.vertices[number].inc_slots and members <= len(below) < len(devices):
                    yield below

    @cached_property
    def _users(self) -> Mapping[Switch, int]:
        """Number of other gangs by switch."""
        found: dict[Switch, int] = {}
        for allocations in self._gangs.values():
            devices = [allocation.device for allocation in allocations]
            for switch in self._nodes_and_switches(devices)[1]:
                found[switch] = found.get(switch, 0) + 1
        return found

    def _nodes_and_switches(self, devices: Sequence[int]) -> tuple[int, tuple[Switch, ...]]:
        nodes = {self._cluster.node_of[device] for device in devices}
        names = [self._cluster.nodes[node].name for node in nodes]
        return len(nodes), job_switches(self._cluster.topology, names)
