"""A cluster: nodes with devices of one kind each.

Devices are numbered from 0, node by node: whatever is kept for every device is an array.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.topology import Topology, Vertex, of_nodes

MOST_DEVICES = 1_000_000  # of a cluster: each is a few objects
_TOO_MANY = f"at most {MOST_DEVICES:,} are simulated; leave some out"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its devices, all of one kind.

    Attributes
    ----------
    kind : str
        As in the catalogue of :mod:`presage.features.device.device`, such as "v100".
    memory_bytes : int
        Of each device.
    """

    name: str
    devices: int
    kind: str
    memory_bytes: int

    def __post_init__(self) -> None:
        for field in ("devices", "memory_bytes"):
            if getattr(self, field) < 1:
                raise ConfigError(
                    f"node {self.name!r}: {field}={getattr(self, field)}, must be >= 1; "
                    "leave out nodes without devices"
                )
        if self.devices > MOST_DEVICES:
            raise ConfigError(f"node {self.name!r}: devices={self.devices}, {_TOO_MANY}")


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """Devices side by side: arrays of shape (devices,).

    Attributes
    ----------
    node : ndarray of int
        The node that each is in.
    memory_bytes : ndarray of int
    kind : ndarray of int
        Positions in ``kinds``.
    """

    node: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    kind: NDArray[np.int64]
    kinds: tuple[str, ...]

    def of_kinds(self, kinds: Collection[str]) -> NDArray[np.bool_]:
        """Which devices are of any of these."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])


class Nodes(NamedTuple):
    """Some nodes of a cluster.

    Attributes
    ----------
    bits : int
        Of their numbers.
    largest, devices : int
        Devices that the largest of them has, and all of them.
    """

    bits: int
    largest: int
    devices: int


@dataclass(frozen=True)
class Cluster:
    """Nodes, in an order that policies break ties by.

    Attributes
    ----------
    wiring : Topology or None
        How they hang together, and the devices in them; None where nobody said.
    """

    nodes: tuple[Node, ...]
    wiring: Topology | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a cluster of no nodes; name one under `nodes`")
        devices = sum(node.devices for node in self.nodes)
        if devices > MOST_DEVICES:
            raise ConfigError(f"a cluster of {devices:,} devices, {_TOO_MANY}")
        names: set[str] = set()
        memory: dict[str, Node] = {}
        for node in self.nodes:
            if node.name in names:
                raise ConfigError(f"two nodes are called {node.name!r}; give each its own name")
            names.add(node.name)
            other = memory.setdefault(node.kind, node)
            if other.memory_bytes != node.memory_bytes:
                raise ConfigError(
                    f"node {node.name!r}: its devices of kind {node.kind!r} have "
                    f"{node.memory_bytes} bytes, those of {other.name!r} {other.memory_bytes}; "
                    "name them as two kinds"
                )
        if self.wiring is not None and self.wiring.devices != self.devices:
            raise ConfigError(
                f"a topology of {self.wiring.devices} devices for a cluster of {self.devices}; "
                "make it of the same nodes"
            )

    @cached_property
    def first_device(self) -> tuple[int, ...]:
        """Number of each node's first device."""
        firsts, next_device = [], 0
        for node in self.nodes:
            firsts.append(next_device)
            next_device += node.devices
        return tuple(firsts)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """Node of each device, by its number."""
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.devices))

    @cached_property
    def whole(self) -> tuple[Allocation, ...]:
        """Each device, all of it."""
        return tuple(
            Allocation(device, FULL_DEVICE_MILLI, self.nodes[node].memory_bytes)
            for device, node in enumerate(self.node_of)
        )

    @cached_property
    def topology(self) -> Topology:
        """How near devices are to each other; of what nobody said, as far as can be."""
        if self.wiring is not None:
            return self.wiring
        return of_nodes(
            Vertex(node.name, "node", tuple(self.devices_of(i)))
            for i, node in enumerate(self.nodes)
        )

    @cached_property
    def columns(self) -> DeviceColumns:
        """The devices as arrays; not to be changed."""
        kinds = tuple(self.kinds)
        of_node = np.array([kinds.index(node.kind) for node in self.nodes])
        node = np.array(self.node_of)
        memory = np.array([allocation.memory_bytes for allocation in self.whole])
        columns = DeviceColumns(node, memory, of_node[node], kinds)
        for array in (columns.node, columns.memory_bytes, columns.kind):
            array.setflags(write=False)
        return columns

    @cached_property
    def devices(self) -> int:
        """How many there are."""
        return len(self.node_of)

    @cached_property
    def node_sizes(self) -> tuple[int, ...]:
        """How many devices nodes have, the largest first."""
        return tuple(sorted({node.devices for node in self.nodes}, reverse=True))

    def nodes_of(self, kinds: tuple[str, ...]) -> Nodes:
        """The nodes of some kinds; all of them if there are no kinds."""
        found = self._nodes_of.get(kinds)
        if found is None:
            there = [i for i, node in enumerate(self.nodes) if not kinds or node.kind in kinds]
            sizes = [self.nodes[i].devices for i in there]
            bits = sum(1 << i for i in there)
            found = self._nodes_of[kinds] = Nodes(bits, max(sizes, default=0), sum(sizes))
        return found

    @cached_property
    def _nodes_of(self) -> dict[tuple[str, ...], Nodes]:
        return {}

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """How many devices there are of each kind."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.kind] = found.get(node.kind, 0) + node.devices
        return MappingProxyType(found)

    @cached_property
    def memory_of(self) -> Mapping[str, int]:
        """Bytes that a device of each kind has."""
        return MappingProxyType({node.kind: node.memory_bytes for node in reversed(self.nodes)})

    def kind_of(self, device: int) -> str:
        """Kind of a device."""
        return self._kind_of[device]

    @cached_property
    def _kind_of(self) -> tuple[str, ...]:
        return tuple(self.nodes[node].kind for node in self.node_of)

    def devices_of(self, node: int) -> range:
        """Numbers of a node's devices."""
        first = self.first_device[node]
        return range(first, first + self.nodes[node].devices)

    def name_of(self, device: int) -> str:
        """Such as "n0/3": the fourth device of node n0."""
        node = self.node_of[device]
        return f"{self.nodes[node].name}/{device - self.first_device[node]}"
