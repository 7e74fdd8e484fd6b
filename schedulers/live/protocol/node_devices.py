"""A node of a live cluster, as policies know nodes: of devices of one kind each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from presage.schedulers.core.cluster import Cluster, Node

PART = "/"  # between a node's name and the number of a run of devices of one kind


def cluster_of(nodes: Iterable[tuple[str, Iterable[tuple[str, int]]]]) -> Cluster:
    """Nodes, by name and the kind and memory of each of their devices."""
    return Cluster(tuple(part for name, devices in nodes for part in _parts(name, devices)))


def name_of(part: Node) -> str:
    """The name of the node that a part is of."""
    return part.name.rpartition(PART)[0]


def _parts(name: str, devices: Iterable[tuple[str, int]]) -> Iterator[Node]:
    for number, ((kind, memory_bytes), run) in enumerate(groupby(devices)):
        yield Node(f"{name}{PART}{number}", len(list(run)), kind, memory_bytes)
