"""Index of devices without jobs, by node; its cost does not grow with the cluster.

Sets are the bits of integers: a copy costs one list with an entry for each node, and the lowest
element of a set is one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from presage.schedulers.core.cluster import Cluster


class IdleDevices:
    """Set of the devices without jobs; a policy takes devices from its own copy."""

    __slots__ = ("_cluster", "_nodes_with", "_of_node", "count")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._of_node = [(1 << node.devices) - 1 for node in cluster.nodes]  # bit: device in node
        self._nodes_with = [0] * (cluster.node_sizes[0] + 1)  # by how many are idle; bit: node
        for number, node in enumerate(cluster.nodes):
            self._nodes_with[node.devices] |= 1 << number
        self.count = cluster.devices

    @classmethod
    def of_bits(cls, cluster: Cluster, bits: int) -> IdleDevices:
        """Return the set of the devices whose bits are set."""
        idle = cls.__new__(cls)
        idle._cluster, idle.count = cluster, bits.bit_count()
        idle._of_node = [0] * len(cluster.nodes)
        idle._nodes_with = [0] * (cluster.node_sizes[0] + 1)
        idle._nodes_with[0] = (1 << len(cluster.nodes)) - 1
        while bits:  # only nodes with idle devices: of a busy cluster they are few
            number = cluster.node_of[(bits & -bits).bit_length() - 1]
            first = cluster.first_device[number]
            here = bits >> first & (1 << cluster.nodes[number].devices) - 1
            idle._of_node[number] = here
            idle._nodes_with[0] ^= 1 << number
            idle._nodes_with[here.bit_count()] |= 1 << number
            bits ^= here << first
        return idle

    def extend(self, cluster: Cluster) -> None:
        """Add the nodes that ``cluster`` has after those of this set's cluster, all idle."""
        first = len(self._of_node)
        self._nodes_with += [0] * (cluster.node_sizes[0] + 1 - len(self._nodes_with))
        for number, node in enumerate(cluster.nodes[first:], first):
            self._of_node.append((1 << node.devices) - 1)
            self._nodes_with[node.devices] |= 1 << number
        self.count += cluster.devices - self._cluster.devices
        self._cluster = cluster

    def bits(self) -> int:
        """Return the idle devices as bits, by device number."""
        bits = 0
        for of_node, first in zip(self._of_node, self._cluster.first_device, strict=True):
            bits |= of_node << first
        return bits

    def copy(self) -> IdleDevices:
        """Return an independent copy."""
        other = IdleDevices.__new__(IdleDevices)
        other._cluster = self._cluster
        other._of_node = self._of_node.copy()
        other._nodes_with = self._nodes_with.copy()
        other.count = self.count
        return other

    def count_on(self, node: int) -> int:
        """Return the number of idle devices of a node."""
        return self._of_node[node].bit_count()

    def is_idle(self, device: int) -> bool:
        """Return whether a device is idle."""
        node = self._cluster.node_of[device]
        return bool(self._of_node[node] >> device - self._cluster.first_device[node] & 1)

    def best_fit_node(self, devices: int, allowed: int = -1) -> int | None:
        """Return the node with the fewest idle devices, but at least ``devices``; None if none has.

        Ties go to the first node. ``allowed`` is the bit set of the nodes to choose from.
        """
        for nodes in self._nodes_with[devices:]:
            if nodes := nodes & allowed:
                return (nodes & -nodes).bit_length() - 1
        return None

    def fully_idle_nodes(self, devices: int, allowed: int = -1) -> Iterator[int]:
        """Yield the nodes of exactly ``devices`` devices that are all idle, in node order."""
        nodes = self._nodes_with[devices] & allowed
        while nodes:
            first = nodes & -nodes
            number = first.bit_length() - 1
            if self._cluster.nodes[number].devices == devices:
                yield number
            nodes ^= first

    def emptiest(self, allowed: int = -1) -> Iterator[int]:
        """Yield nodes by falling number of idle devices; ties go to the first node."""
        for nodes in reversed(self._nodes_with):
            left = nodes & allowed
            while left:
                first = left & -left
                yield first.bit_length() - 1
                left ^= first

    def take_from_node(self, node: int, devices: int) -> list[int]:
        """Take the first ``devices`` idle devices of a node and return their numbers."""
        idle, first = self._of_node[node], self._cluster.first_device[node]
        taken, left = [], idle
        for _ in range(devices):
            lowest = left & -left
            taken.append(first + lowest.bit_length() - 1)
            left ^= lowest
        self._change(node, idle, left)
        return taken

    def take(self, devices: Sequence[int]) -> None:
        """Take devices by their numbers."""
        for node, bits in self._by_node(devices):
            idle = self._of_node[node]
            self._change(node, idle, idle & ~bits)

    def give(self, devices: Sequence[int]) -> None:
        """Give back devices that were taken."""
        for node, bits in self._by_node(devices):
            idle = self._of_node[node]
            self._change(node, idle, idle | bits)

    def _by_node(self, devices: Sequence[int]) -> list[tuple[int, int]]:
        """Return nodes with bit sets of their devices; adjacent entries of a node are merged."""
        node_of, first_device = self._cluster.node_of, self._cluster.first_device
        found: list[tuple[int, int]] = []
        node, bits = -1, 0
        for device in devices:
            if node_of[device] != node:
                if bits:
                    found.append((node, bits))
                node, bits = node_of[device], 0
            bits |= 1 << device - first_device[node]
        if bits:
            found.append((node, bits))
        return found

    def _change(self, node: int, before: int, now: int) -> None:
        self._of_node[node] = now
        was, is_now, bit = before.bit_count(), now.bit_count(), 1 << node
        self._nodes_with[was] &= ~bit
        self._nodes_with[is_now] |= bit
        self.count += is_now - was
