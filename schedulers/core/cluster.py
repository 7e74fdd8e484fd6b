"""Cluster: nodes, each with devices of one kind.

Devices are numbered from 0, node by node, so that properties of devices are arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.topology import Topology, Vertex, flat_topology

MOST_DEVICES = 1_000_000  # of a cluster: each device costs a few objects
_LIMIT = f"the limit is {MOST_DEVICES:,}"


@dataclass(frozen=True, slots=True)
class Node:
    """Machine with devices of one kind.

    Attributes
    ----------
    devices : int
        Number of devices.
    kind : str
        Kind of the devices, as in the catalogue of :mod:`presage.features.device.device`, such as
        "v100".
    memory_bytes : int
        Memory of each device.
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
            raise ConfigError(f"node {self.name!r}: devices={self.devices}, {_LIMIT}")


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """Properties of all devices as arrays of shape (devices,).

    Attributes
    ----------
    node : ndarray of int
        Number of each device's node.
    memory_bytes : ndarray of int
        Memory of each device.
    kind : ndarray of int
        Kind of each device, as a position in ``kinds``.
    """

    node: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    kind: NDArray[np.int64]
    kinds: tuple[str, ...]

    def has_kind(self, kinds: Collection[str]) -> NDArray[np.bool_]:
        """Return a mask of the devices that are of any of these kinds."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])


class NodeSet(NamedTuple):
    """Set of nodes of a cluster.

    Attributes
    ----------
    bits : int
        Bit set of their numbers.
    largest, devices : int
        Number of devices of the largest node, and of all nodes.
    """

    bits: int
    largest: int
    devices: int


@dataclass(frozen=True)
class Cluster:
    """Nodes of a cluster; policies break ties by their order.

    Attributes
    ----------
    wiring : Topology or None
        Links between nodes and between devices; None if unknown.
    """

    nodes: tuple[Node, ...]
    wiring: Topology | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a cluster needs at least one node; add one under `nodes`")
        _check_devices(sum(node.devices for node in self.nodes))
        _check_nodes(self.nodes, {}, ())
        if self.wiring is not None and self.wiring.devices != self.devices:
            raise ConfigError(
                f"the topology has {self.wiring.devices} devices and the cluster {self.devices}; "
                "describe the same nodes in both"
            )

    def __reduce__(self) -> tuple[type[Cluster], tuple[tuple[Node, ...], Topology | None]]:
        # Without cached properties: they have read-only views, which cannot be pickled.
        return Cluster, (self.nodes, self.wiring)

    def extended(self, nodes: Sequence[Node]) -> Cluster:
        """Return a cluster with more nodes after its own, without a known topology.

        Devices keep their numbers. The columns of the devices are copied, not computed again.

        Raises
        ------
        ConfigError
            A node has the name of another one, or another memory size than its kind.
        """
        new, other = Cluster(tuple(nodes)), Cluster.__new__(Cluster)  # the present ones are checked
        first_node, first = len(self.nodes), self.devices
        _check_nodes(nodes, self._first_of_kind, self._names)
        _check_devices(first + new.devices)
        counts = dict(self.kinds)
        for kind, devices in new.kinds.items():
            counts[kind] = counts.get(kind, 0) + devices
        kinds = tuple(counts)
        kind_of_new = np.array([kinds.index(kind) for kind in new.columns.kinds])
        whole = [one._replace(device=one.device + first) for one in new.full_allocations]
        known = other.__dict__  # where the values of cached properties are
        known["nodes"], known["wiring"] = (*self.nodes, *nodes), None
        known["kinds"] = MappingProxyType(counts)
        known["memory_of"] = MappingProxyType({**new.memory_of, **self.memory_of})
        known["_first_of_kind"] = {**new._first_of_kind, **self._first_of_kind}
        known["_names"] = self._names | new._names
        known["first_device"] = (*self.first_device, *(one + first for one in new.first_device))
        known["node_of"] = (*self.node_of, *(one + first_node for one in new.node_of))
        known["full_allocations"] = (*self.full_allocations, *whole)
        known["_kind_of"] = (*self._kind_of, *new._kind_of)
        known["columns"] = _read_only(
            np.concatenate((self.columns.node, new.columns.node + first_node)),
            np.concatenate((self.columns.memory_bytes, new.columns.memory_bytes)),
            np.concatenate((self.columns.kind, kind_of_new[new.columns.kind])),
            kinds,
        )
        return other

    @cached_property
    def _first_of_kind(self) -> dict[str, Node]:
        return {node.kind: node for node in reversed(self.nodes)}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes)

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
    def full_allocations(self) -> tuple[Allocation, ...]:
        """Allocation of each full device."""
        return tuple(
            Allocation(device, FULL_DEVICE_MILLI, self.nodes[node].memory_bytes)
            for device, node in enumerate(self.node_of)
        )

    @cached_property
    def topology(self) -> Topology:
        """Distances between devices; all nodes are equally far apart if links are unknown."""
        if self.wiring is not None:
            return self.wiring
        return flat_topology(
            Vertex(node.name, "node", tuple(self.devices_of(i)))
            for i, node in enumerate(self.nodes)
        )

    @cached_property
    def columns(self) -> DeviceColumns:
        """Properties of the devices as read-only arrays."""
        kinds = tuple(self.kinds)
        of_node = np.array([kinds.index(node.kind) for node in self.nodes])
        node = np.array(self.node_of)
        memory = np.array([allocation.memory_bytes for allocation in self.full_allocations])
        return _read_only(node, memory, of_node[node], kinds)

    @cached_property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.node_of)

    @cached_property
    def node_sizes(self) -> tuple[int, ...]:
        """Distinct numbers of devices of nodes, the largest first."""
        return tuple(sorted({node.devices for node in self.nodes}, reverse=True))

    def nodes_of(self, kinds: tuple[str, ...]) -> NodeSet:
        """Return the nodes with devices of some kinds; all nodes if ``kinds`` is empty."""
        found = self._nodes_of.get(kinds)
        if found is None:
            numbers = [i for i, node in enumerate(self.nodes) if not kinds or node.kind in kinds]
            sizes = [self.nodes[i].devices for i in numbers]
            bits = sum(1 << i for i in numbers)
            found = self._nodes_of[kinds] = NodeSet(bits, max(sizes, default=0), sum(sizes))
        return found

    @cached_property
    def _nodes_of(self) -> dict[tuple[str, ...], NodeSet]:
        return {}

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """Number of devices of each kind."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.kind] = found.get(node.kind, 0) + node.devices
        return MappingProxyType(found)

    @cached_property
    def memory_of(self) -> Mapping[str, int]:
        """Memory of a device of each kind, in bytes."""
        return MappingProxyType({node.kind: node.memory_bytes for node in reversed(self.nodes)})

    def kind_of(self, device: int) -> str:
        """Return the kind of a device."""
        return self._kind_of[device]

    @cached_property
    def _kind_of(self) -> tuple[str, ...]:
        return tuple(self.nodes[node].kind for node in self.node_of)

    def devices_of(self, node: int) -> range:
        """Return the numbers of a node's devices."""
        first = self.first_device[node]
        return range(first, first + self.nodes[node].devices)

    def name_of(self, device: int) -> str:
        """Return the name of a device, such as "n0/3" for the fourth device of node n0."""
        node = self.node_of[device]
        return f"{self.nodes[node].name}/{device - self.first_device[node]}"


def _check_devices(devices: int) -> None:
    if devices > MOST_DEVICES:
        raise ConfigError(f"the cluster has {devices:,} devices, {_LIMIT}")


def _check_nodes(
    nodes: Iterable[Node], first_of_kind: Mapping[str, Node], names: Collection[str]
) -> None:
    """Raise ConfigError unless nodes have names and memory that fit each other and ``names``."""
    here: set[str] = set()
    first_of_kind = dict(first_of_kind)
    for node in nodes:
        if node.name in here or node.name in names:
            raise ConfigError(f"two nodes are called {node.name!r}; give each its own name")
        here.add(node.name)
        other = first_of_kind.setdefault(node.kind, node)
        if other.memory_bytes != node.memory_bytes:
            raise ConfigError(
                f"node {node.name!r}: its devices of kind {node.kind!r} have "
                f"{node.memory_bytes} bytes, those of {other.name!r} {other.memory_bytes}; "
                "give them different kinds"
            )


def _read_only(
    node: NDArray[np.int64],
    memory_bytes: NDArray[np.int64],
    kind: NDArray[np.int64],
    kinds: tuple[str, ...],
) -> DeviceColumns:
    """Return columns whose arrays cannot be written."""
    for array in (node, memory_bytes, kind):
        array.setflags(write=False)
    return DeviceColumns(node, memory_bytes, kind, kinds)
