"""The nodes of a Kubernetes cluster, as nodes and devices of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from presage.features.device.device import catalogue, device_kind
from presage.schedulers.cluster_files.topology_file import (
    NODE_LAYOUTS,
    NodeLayout,
    node_layout,
    parse_topology,
)
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.kubernetes.gate.annotations import device_names
from presage.schedulers.kubernetes.kubernetes_names import KIND, MEMORY, PRODUCT, REPLICAS, WITHIN
from presage.schedulers.kubernetes.pods import MILLI, amount
from presage.schedulers.kubernetes.snapshot import Json

MIB = 2**20
LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "rack": "network.topology.nvidia.com/leaf",
        "spine": "network.topology.nvidia.com/spine",
    }
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a cluster's nodes are read.

    Attributes
    ----------
    resource : str
        What pods ask devices by.
    levels : mapping of str to str
        Of levels of the topology, innermost first, the label that says which one a node is in.
    """

    resource: str = "nvidia.com/gpu"
    levels: Mapping[str, str] = field(default_factory=lambda: LEVELS)


@dataclass(frozen=True)
class Fleet:
    """Nodes with devices, in depth-first order of their topology.

    Attributes
    ----------
    nodes : mapping of str to dict
        As the API server has them, by name, in that order.
    share : tuple of int
        How many pods may share a device, of each node.
    """

    cluster: Cluster
    nodes: Mapping[str, Json]
    share: tuple[int, ...]
    resource: str

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Numbers of nodes by their names."""
        return {node.name: number for number, node in enumerate(self.cluster.nodes)}

    def device(self, node: str, number: int) -> int | None:
        """A device by the name of its node and its number there; None of one that is not there."""
        place = self.places.get(node)
        if place is None or number >= self.cluster.nodes[place].devices:
            return None
        return self.cluster.first_device[place] + number

    def names(self, devices: Iterable[int]) -> str:
        """Of devices, as annotations have them."""
        cluster = self.cluster
        at = ((cluster.node_of[device], device) for device in devices)
        return device_names(
            (cluster.nodes[node].name, device - cluster.first_device[node]) for node, device in at
        )


def fleet_of(nodes: Iterable[Json], reading: Reading) -> Fleet | None:
    """All nodes that have devices; None where no node has any.

    Devices that do not work are not among those that a node has to give: they are left out, as
    nodes that are not ready are, which the API server taints.

    Raises
    ------
    ConfigError
        A level of ``reading`` is not known.
    """
    found: dict[str, tuple[tuple[str, ...], Json]] = {}
    for node in nodes:
        if devices_of(node, reading.resource):
            found[node["metadata"]["name"]] = _path(node, reading), node
    if not found:
        return None
    in_order = dict(sorted(found.items(), key=lambda one: (one[1][0], one[0])))
    given = {name: node for name, (_, node) in in_order.items()}
    kinds = {name: kind_of(node) for name, node in given.items()}
    memory_of: dict[str, int] = {}
    for name, node in given.items():  # drivers leave more or less of it: what all of a kind have
        kind, memory_bytes = kinds[name], _memory_bytes(node, kinds[name])
        memory_of[kind] = min(memory_of.get(kind, memory_bytes), memory_bytes)
    cluster = Cluster(
        tuple(
            Node(name, devices_of(node, reading.resource), kinds[name], memory_of[kinds[name]])
            for name, node in given.items()
        )
    )
    layouts = [_node_layout(one, given[one.name]) for one in cluster.nodes]
    groups = _groups({name: path for name, (path, _) in in_order.items()}, reading)
    topology = parse_topology(cluster, layouts, {"groups": groups})
    return Fleet(
        Cluster(cluster.nodes, topology),
        given,
        tuple(_replicas(node) for node in given.values()),
        reading.resource,
    )


def devices_of(node: Json, resource: str) -> int:
    """Return the number of allocatable devices of a node, exclusive or shared."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return amount(allocatable.get(resource, 0)) // MILLI // _replicas(node)


def kind_of(node: Json) -> str:
    """Return the device kind in the catalogue, or the product's name if it has none."""
    labels = node["metadata"].get("labels") or {}
    if KIND in labels:
        return str(labels[KIND])
    product = str(labels.get(PRODUCT, "unknown")).removesuffix("-SHARED")
    return device_kind(product.replace("-", " ")) or device_kind(product) or product


def _memory_bytes(node: Json, kind: str) -> int:
    """Return the memory of each device; 1 if unknown, so that it is allocated exclusively."""
    text = (node["metadata"].get("labels") or {}).get(MEMORY, "")
    if text.isdecimal() and int(text):
        return int(text) * MIB
    return catalogue()[kind].memory_bytes if kind in catalogue() else 1


def _replicas(node: Json) -> int:
    text = (node["metadata"].get("labels") or {}).get(REPLICAS, "")
    return int(text) if text.isdecimal() and int(text) else 1


def _path(node: Json, reading: Reading) -> tuple[str, ...]:
    """Return the groups of a node, outermost first; a group without a label has one member."""
    labels = node["metadata"].get("labels") or {}
    path: list[str] = []
    parent = node["metadata"]["name"]
    for label in reading.levels.values():
        parent = labels.get(label) or f"({parent})"
        path.append(parent)
    return tuple(reversed(path))


def _groups(
    paths: Mapping[str, tuple[str, ...]], reading: Reading
) -> Mapping[str, Mapping[str, str]]:
    """Return the members of each group by level, innermost first."""
    found: dict[str, dict[str, str]] = {}
    for depth, level in enumerate(reading.levels):
        groups: dict[str, dict[str, None]] = {}
        for node, path in paths.items():
            here = len(path) - depth
            member = "/".join(path[: here + 1]) if depth else node
            groups.setdefault("/".join(path[:here]), {})[member] = None
        found[level] = {group: ",".join(members) for group, members in groups.items()}
    return found


def _node_layout(node: Node, given: Json) -> NodeLayout | None:
    """Return the layout that a node's label names; None if missing or invalid."""
    within = (given["metadata"].get("labels") or {}).get(WITHIN, "")
    size, _ = NODE_LAYOUTS.get(within, (0, ""))
    if within not in NODE_LAYOUTS or (size and node.devices % size):
        return None
    return node_layout(within, node, Path(), node.name)
