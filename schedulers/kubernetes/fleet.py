"""Fleet: the GPU nodes of a Kubernetes cluster, as nodes and devices of the scheduling core."""

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
from presage.schedulers.kubernetes.gate.annotations import format_devices
from presage.schedulers.kubernetes.kubernetes_names import (
    DEVICE_KIND,
    MEMORY,
    NODE_LAYOUT,
    PRODUCT,
    REPLICAS,
)
from presage.schedulers.kubernetes.pods import MILLI, parse_milli
from presage.schedulers.kubernetes.snapshot import Json

MIB = 2**20
LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "rack": "network.topology.nvidia.com/leaf",
        "spine": "network.topology.nvidia.com/spine",
    }
)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Names by which devices and topology are found in a cluster.

    Attributes
    ----------
    resource : str
        Resource name by which pods request devices.
    levels : mapping of str to str
        Node label of each topology level, innermost level first.
    """

    resource: str = "nvidia.com/gpu"
    levels: Mapping[str, str] = field(default_factory=lambda: LEVELS)


@dataclass(frozen=True)
class Fleet:
    """Nodes with devices, in depth-first order of their topology.

    Attributes
    ----------
    nodes : mapping of str to dict
        JSON of the API server by name, in that order.
    pods_per_device : tuple of int
        Maximum number of pods on a device, for each node.
    """

    cluster: Cluster
    nodes: Mapping[str, Json]
    pods_per_device: tuple[int, ...]
    resource: str

    @cached_property
    def node_index(self) -> Mapping[str, int]:
        """Indices of nodes by name."""
        return {node.name: index for index, node in enumerate(self.cluster.nodes)}

    def device_index(self, node: str, number: int) -> int | None:
        """Return the index of a device, given its number in a node; None if it does not exist."""
        index = self.node_index.get(node)
        if index is None or number >= self.cluster.nodes[index].devices:
            return None
        return self.cluster.first_device[index] + number

    def format_devices(self, devices: Iterable[int]) -> str:
        """Return devices in the format of annotations."""
        cluster = self.cluster
        pairs = ((cluster.node_of[device], device) for device in devices)
        return format_devices(
            (cluster.nodes[node].name, device - cluster.first_device[node])
            for node, device in pairs
        )


def make_fleet(nodes: Iterable[Json], options: FleetOptions) -> Fleet | None:
    """Return the nodes that have devices; None if there are none.

    Only allocatable devices count, so broken devices are left out. Nodes that are not ready are
    included: Kubernetes taints them.

    Raises
    ------
    ConfigError
        A level of ``options`` is unknown.
    """
    paths: dict[str, tuple[tuple[str, ...], Json]] = {}
    for node in nodes:
        if device_count(node, options.resource):
            paths[node["metadata"]["name"]] = _topology_path(node, options), node
    if not paths:
        return None
    in_order = dict(sorted(paths.items(), key=lambda item: (item[1][0], item[0])))
    by_name = {name: node for name, (_, node) in in_order.items()}
    kinds = {name: device_kind_of(node) for name, node in by_name.items()}
    min_memory: dict[str, int] = {}  # by kind; the memory that a driver leaves free differs
    for name, node in by_name.items():
        kind, memory_bytes = kinds[name], _memory_bytes(node, kinds[name])
        min_memory[kind] = min(min_memory.get(kind, memory_bytes), memory_bytes)
    cluster = Cluster(
        tuple(
            Node(name, device_count(node, options.resource), kinds[name], min_memory[kinds[name]])
            for name, node in by_name.items()
        )
    )
    layouts = [_node_layout(node, by_name[node.name]) for node in cluster.nodes]
    groups = _groups({name: path for name, (path, _) in in_order.items()}, options)
    topology = parse_topology(cluster, layouts, {"groups": groups})
    return Fleet(
        Cluster(cluster.nodes, topology),
        by_name,
        tuple(_replicas(node) for node in by_name.values()),
        options.resource,
    )


def device_count(node: Json, resource: str) -> int:
    """Return the number of allocatable devices of a node, exclusive or shared."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return parse_milli(allocatable.get(resource, 0)) // MILLI // _replicas(node)


def device_kind_of(node: Json) -> str:
    """Return the device kind of a node, or the product's name if the catalogue lacks it."""
    labels = node["metadata"].get("labels") or {}
    if DEVICE_KIND in labels:
        return str(labels[DEVICE_KIND])
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


def _topology_path(node: Json, options: FleetOptions) -> tuple[str, ...]:
    """Return the groups of a node, outermost first; a group without a label has one member."""
    labels = node["metadata"].get("labels") or {}
    path: list[str] = []
    parent = node["metadata"]["name"]
    for label in options.levels.values():
        parent = labels.get(label) or f"({parent})"
        path.append(parent)
    return tuple(reversed(path))


def _groups(
    paths: Mapping[str, tuple[str, ...]], options: FleetOptions
) -> Mapping[str, Mapping[str, str]]:
    """Return the members of each group by level, innermost first."""
    members_by_level: dict[str, dict[str, str]] = {}
    for depth, level in enumerate(options.levels):
        groups: dict[str, dict[str, None]] = {}
        for node, path in paths.items():
            length = len(path) - depth
            member = "/".join(path[: length + 1]) if depth else node
            groups.setdefault("/".join(path[:length]), {})[member] = None
        members_by_level[level] = {group: ",".join(names) for group, names in groups.items()}
    return members_by_level


def _node_layout(node: Node, obj: Json) -> NodeLayout | None:
    """Return the layout that a node's label names; None if missing or invalid."""
    layout = (obj["metadata"].get("labels") or {}).get(NODE_LAYOUT, "")
    size, _ = NODE_LAYOUTS.get(layout, (0, ""))
    if layout not in NODE_LAYOUTS or (size and node.devices % size):
        return None
    return node_layout(layout, node, Path(), node.name)
