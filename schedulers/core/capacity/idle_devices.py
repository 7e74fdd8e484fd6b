"""Devices that nobody is on, by node: found and taken as fast in a large cluster as in a small one.

Sets are the bits of integers: a copy is as cheap as a list of a node's length, and the first of
a set is one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from presage.schedulers.core.cluster import Cluster


class IdleDevices:
    """Which devices are idle; a policy takes from a copy of its own."""

    __slots__ = ("_cluster", "_nodes_with", "_of_node", "count")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._of_node = [(1 << node.devices) - 1 for node in cluster.nodes]  # bit: device in node
        self._nodes_with = [0] * (cluster.node_sizes[0] + 1)  # by how many are idle; bit: node
        for number, node in enumerate(cluster.nodes):
            self._nodes_with[node.devices] |= 1 << number
        self.count = cluster.devices

    def copy(self) -> IdleDevices:
        """Another one, to take from."""
        other = IdleDevices.__new__(IdleDevices)
        other._cluster = self._cluster
        other._of_node = self._of_node.copy()
        other._nodes_with = self._nodes_with.copy()
        other.count = self.count
        return other

    def on(self, node: int) -> int:
        """How many of a node's devices are idle."""
        return self._of_node[node].bit_count()

    def has(self, device: int) -> bool:
        """Whether a device is idle."""
        node = self._cluster.node_of[device]
        return bool(self._of_node[node] >> device - self._cluster.first_device[node] & 1)

    def fullest_with(self, devices: int, allowed: int = -1) -> int | None:
        """Node with the fewest idle devices that has so many; the first of several.

        ``allowed`` has the bits of the nodes to choose from.
        """
        for nodes in self._nodes_with[devices:]:
            if nodes := nodes & allowed:
                return (nodes & -nodes).bit_length() - 1
        return None

    def wholly_idle(self, devices: int, allowed: int = -1) -> Iterator[int]:
        """Nodes of so many devices that are all idle, first ones first."""
        nodes = self._nodes_with[devices] & allowed
        while nodes:
            first = nodes & -nodes
            number = first.bit_length() - 1
            if self._cluster.nodes[number].devices == devices:
                yield number
            nodes ^= first

    def emptiest(self, allowed: int = -1) -> Iterator[int]:
        """Nodes with most idle devices first, of equals the first one first."""
        for nodes in reversed(self._nodes_with):
            left = nodes & allowed
            while left:
                first = left & -left
                yield first.bit_length() - 1
                left ^= first

    def take_some(self, node: int, devices: int) -> list[int]:
        """Take so many of a node's idle devices, first ones first; their numbers."""
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
        """Give devices back that were taken."""
        for node, bits in self._by_node(devices):
            idle = self._of_node[node]
            self._change(node, idle, idle | bits)

    def _by_node(self, devices: Sequence[int]) -> list[tuple[int, int]]:
        """Nodes, and bits of their devices; once each where those of a node come together."""
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
