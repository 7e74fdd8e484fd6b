"""Conversion of a live node to the nodes of policies, which have devices of one kind each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from presage.schedulers.core.cluster import Cluster, Node

PART = "/"  # between the name of a node and the number of a part with one kind of device


def make_cluster(nodes: Iterable[tuple[str, Iterable[tuple[str, int]]]]) -> Cluster:
    """Return the cluster of nodes, given by name and the kind and memory of each device."""
    return Cluster(tuple(part for name, devices in nodes for part in make_parts(name, devices)))


def node_name(part: Node) -> str:
    """Return the name of the live node that a part belongs to."""
    return part.name.rpartition(PART)[0]


def part_sizes(devices: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield the kind and the number of devices of each part of a live node."""
    for (kind, _), run in groupby(devices):
        yield kind, len(list(run))


def make_parts(name: str, devices: Iterable[tuple[str, int]]) -> Iterator[Node]:
    """Yield the parts of a live node with devices of one kind each."""
    for number, ((kind, memory_bytes), run) in enumerate(groupby(devices)):
        yield Node(f"{name}{PART}{number}", len(list(run)), kind, memory_bytes)
