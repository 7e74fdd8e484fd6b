"""Node of a TensorFlow graph, and traversal of the graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from presage.errors import GraphError


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator with its inputs resolved: tensors are "node:output", functions are inlined.

    ``loops`` names the loops whose body contains it, outermost first.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    controls: tuple[str, ...]
    attr: Mapping[str, Any]
    loops: tuple[str, ...] = ()

    def outputs(self, tensors: Container[str]) -> list[str]:
        """Return the names of its outputs, among ``tensors``."""
        names = itertools.count()
        return list(itertools.takewhile(tensors.__contains__, (f"{self.name}:{i}" for i in names)))

    def times(self, rounds: Mapping[str, int]) -> int:
        """Return how often a step runs the node, given the iterations of each loop."""
        return math.prod(rounds[loop] for loop in self.loops)

    def integer(self, name: str, default: int = 0) -> int:
        """Return the value of an integer attribute, or ``default`` without it."""
        return int(self.attr[name].i) if name in self.attr else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the value of a boolean attribute, or ``default`` without it."""
        return bool(self.attr[name].b) if name in self.attr else default

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a text attribute, or ``default`` without it."""
        return self.attr[name].s.decode(errors="replace") if name in self.attr else default

    def integers(self, name: str) -> list[int]:
        """Return the integers of a list attribute; empty without it."""
        return [int(i) for i in self.attr[name].list.i] if name in self.attr else []

    def dtype(self, *names: str, default: int = 0) -> int:
        """Return the first of these type attributes; for a reference type, its target."""
        found = next((self.attr[n].type for n in names if n in self.attr), default)
        return int(found) % 100

    def declared_shapes(self, name: str = "_output_shapes") -> list[tuple[int, ...] | None]:
        """Return the shapes in the file, with -1 for open sizes; None for an unknown rank."""
        if name not in self.attr:
            return []
        value = self.attr[name]
        shapes = [value.shape] if value.HasField("shape") else list(value.list.shape)
        return [None if s.unknown_rank else tuple(int(d.size) for d in s.dim) for s in shapes]


Graph = Mapping[str, Node]


def producer(tensor: str) -> str:
    """Return the name of the node that writes a tensor."""
    return tensor.rpartition(":")[0]


def upstream(graph: Graph, names: Iterable[str], *, controls: bool = True) -> set[str]:
    """Return the named nodes and all nodes that they depend on."""

    def sources(node: Node) -> Iterable[str]:
        data = (producer(tensor) for tensor in node.inputs)
        return (*data, *node.controls) if controls else data

    return _reach(graph, names, sources)


def downstream(graph: Graph, names: Iterable[str], *, controls: bool = False) -> set[str]:
    """Return the named nodes and all computed from them or, with ``controls``, run after them."""
    readers: dict[str, list[str]] = {}
    for node in graph.values():
        for source in (*map(producer, node.inputs), *(node.controls if controls else ())):
            readers.setdefault(source, []).append(node.name)
    return _reach(graph, names, lambda node: readers.get(node.name, ()))


def _reach(graph: Graph, names: Iterable[str], step: Callable[[Node], Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name for name in names if name in graph]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(n for n in step(graph[name]) if n in graph and n not in found)
    return found


def in_order(graph: Graph, names: AbstractSet[str]) -> list[Node]:
    """Return these nodes in topological order.

    Raises
    ------
    GraphError
        The nodes form a cycle.
    """
    chosen = [node for node in graph.values() if node.name in names]
    missing = {n.name: {s for s in map(producer, n.inputs) if s in names} for n in chosen}
    readers: dict[str, list[str]] = {}
    for name, sources in missing.items():
        for source in sources:
            readers.setdefault(source, []).append(name)
    ready = [node.name for node in reversed(chosen) if not missing[node.name]]
    order: list[Node] = []
    while ready:
        node = graph[ready.pop()]
        order.append(node)
        for reader in readers.get(node.name, ()):
            missing[reader].discard(node.name)
            if not missing[reader]:
                ready.append(reader)
    if len(order) < len(chosen):
        stuck = next(n for n in chosen if missing[n.name])
        raise GraphError(
            f"node {stuck.name!r} ({stuck.op}) depends on itself: a loop of TensorFlow 1's "
            "control flow; unroll it, or export it with lower_control_flow=False"
        )
    return order
