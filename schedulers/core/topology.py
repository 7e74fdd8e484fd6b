"""Topology of a cluster: a tree over its devices, with a communication cost for each level.

Two devices communicate through their lowest common ancestor in the tree. Its level stands for the
slowest link between them, and a table gives the cost of that link relative to NVLink (requirements
C1 and C3). Costs belong to vertices. The equivalent weight of the link from a vertex to its parent
is half of the difference of their costs; a path then weighs as much as its uppermost vertex.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from presage.errors import ConfigError

# Communication cost by level, innermost first, relative to NVLink (requirement C3).
COSTS: Mapping[str, float] = MappingProxyType(
    {
        "nvlink": 1.0,
        "pix": 2.0,  # at most one PCIe bridge
        "pxb": 3.0,  # several PCIe bridges, and no host bridge
        "phb": 4.0,  # a PCIe host bridge
        "numa": 4.0,  # several host bridges of one NUMA node: "NODE" in nvidia-smi
        "node": 5.0,  # links between sockets: "SYS"; also the default within a node
        "rack": 10.0,
        "spine": 20.0,
        "cluster": 40.0,
    }
)


@dataclass(frozen=True, slots=True)
class Vertex:
    """Inner vertex of the tree, which connects devices: a switch, a socket, a node, a rack.

    Attributes
    ----------
    name : str
        Name that is unique within the level.
    level : str
        Level, as in the table of costs.
    below : tuple of Vertex and int
        Children: vertices of inner levels, and devices by their numbers.
    inc_slots : int
        Jobs whose AllReduces this switch can aggregate at a time; 0 if it cannot compute.
    """

    name: str
    level: str
    below: tuple[Vertex | int, ...]
    inc_slots: int = 0


class _IndexedVertex(NamedTuple):
    """Vertex with its number in depth-first order and the devices below it."""

    vertex: Vertex
    number: int
    devices: list[int]


@dataclass(frozen=True)
class Topology:
    """Tree over the devices 0, 1, ... of a cluster.

    Attributes
    ----------
    root : Vertex
        Ancestor of all devices.
    costs : Mapping of str to float
        Relative cost of each level, innermost first. Costs are at least 0 and do not fall from one
        level to the next outer one, so that they are an ultrametric.
    """

    root: Vertex
    costs: Mapping[str, float] = field(default_factory=lambda: COSTS, hash=False)

    def __post_init__(self) -> None:
        check_costs(self.costs)
        self._check_levels(self.root)
        named: set[tuple[str, str]] = set()
        for vertex, _, below in self._vertices:
            if (vertex.level, vertex.name) in named:
                raise ConfigError(
                    f"two vertices of level {vertex.level!r} are called {vertex.name!r}; rename one"
                )
            named.add((vertex.level, vertex.name))
            if vertex.inc_slots < 0:
                raise ConfigError(
                    f"{vertex.level} {vertex.name!r}: inc_slots={vertex.inc_slots}, must be >= 0"
                )
            if not below:
                raise ConfigError(
                    f"{vertex.level} {vertex.name!r} has no device below it; leave it out"
                )
        devices = sorted(self._vertices[0].devices)
        wrong = next((i for i, device in enumerate(devices) if device != i), None)
        if wrong is not None:
            twice = devices[wrong] < wrong
            raise ConfigError(
                f"device {devices[wrong] if twice else wrong} is "
                f"{'twice' if twice else 'not'} in the tree; list each device once, from 0 on"
            )

    def __reduce__(self) -> tuple[type[Topology], tuple[Vertex, dict[str, float]]]:
        # Without cached properties and with plain costs: read-only views cannot be pickled.
        return Topology, (self.root, dict(self.costs))

    def _check_levels(self, vertex: Vertex) -> None:
        inwards = list(self.costs)
        for child in (vertex, *vertex.below):
            if not isinstance(child, int) and child.level not in inwards:
                raise ConfigError(
                    f"{child.name!r} is of level {child.level!r}, which has no cost; "
                    f"levels with a cost are {', '.join(inwards)}"
                )
        for child in vertex.below:
            if isinstance(child, int):
                continue
            if inwards.index(child.level) >= inwards.index(vertex.level):
                raise ConfigError(
                    f"{child.level} {child.name!r} is below {vertex.level} {vertex.name!r}; the "
                    f"order of levels, from the innermost, is {', '.join(inwards)}"
                )
            self._check_levels(child)

    # Vertices and devices -------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self._vertices[0].devices)

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Levels that have a vertex, innermost first."""
        present = {indexed.vertex.level for indexed in self._vertices}
        return tuple(level for level in self.costs if level in present)

    @cached_property
    def vertices(self) -> tuple[Vertex, ...]:
        """Vertices by number, which is the position in depth-first order."""
        return tuple(indexed.vertex for indexed in self._vertices)

    @cached_property
    def node_paths(self) -> Mapping[str, tuple[Vertex, ...]]:
        """Vertices above each node by its name, innermost first; nodes in depth-first order."""
        found: dict[str, tuple[Vertex, ...]] = {}

        def walk(vertex: Vertex, above: tuple[Vertex, ...]) -> None:
            if vertex.level == "node":
                found[vertex.name] = above
                return
            for child in vertex.below:
                if isinstance(child, Vertex):
                    walk(child, (vertex, *above))

        walk(self.root, ())
        return found

    def ancestor(self, level: str) -> NDArray[np.int64]:
        """Return the number of each device's ancestor of a level; -1 where there is none.

        Returns
        -------
        ndarray of shape (devices,)

        Raises
        ------
        ValueError
            If no vertex is of that level.
        """
        above: NDArray[np.int64] = np.maximum(self._ancestors[self._level(level)], -1)
        return above

    def below(self, level: str, name: str) -> NDArray[np.int64]:
        """Return the numbers of the devices below a vertex, ascending.

        Raises
        ------
        ValueError
            If there is no such vertex.
        """
        for vertex, _, devices in self._vertices:
            if vertex.level == level and vertex.name == name:
                return np.array(sorted(devices), np.int64)
        raise ValueError(f"no {level} is called {name!r}")

    @cached_property
    def depth_first(self) -> NDArray[np.int64]:
        """Devices in depth-first order: the devices below a vertex are adjacent."""
        return np.array(self._vertices[0].devices, np.int64)

    # Costs ----------------------------------------------------------------------------------

    def distance(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
        """Return the communication cost between devices: 0 for a device and itself.

        Parameters
        ----------
        a, b : int or array of int
            Devices, of shapes that broadcast. ``distance(ring, np.roll(ring, -1))`` returns the
            costs of a ring's edges.

        Returns
        -------
        ndarray of the broadcast shape
        """
        costs = np.array([self.costs[level] for level in self.levels])
        return np.where(np.equal(a, b), 0.0, costs[self.common_level(a, b)])

    def common_level(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.int64]:
        """Return the position in ``levels`` of the level of the devices' lowest common ancestor.

        Shapes broadcast as in :meth:`distance`.
        """
        a, b = np.asarray(a), np.asarray(b)
        found = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        for level in reversed(range(len(self.levels))):
            above = self._ancestors[level]
            np.copyto(found, level, where=above[a] == above[b])
        return found

    def distances(self, devices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the communication cost between each pair of devices (msc of requirement C1).

        Returns
        -------
        ndarray of shape (len(devices), len(devices))
            It is not stored: the tree itself is an array of shape (levels, devices).
        """
        subset = np.asarray(devices)
        return self.distance(subset[:, None], subset[None, :])

    # Index of vertices ----------------------------------------------------------------------

    @cached_property
    def _vertices(self) -> list[_IndexedVertex]:
        """All vertices in depth-first order."""
        found: list[_IndexedVertex] = []

        def walk(vertex: Vertex) -> list[int]:
            devices: list[int] = []
            found.append(_IndexedVertex(vertex, len(found), devices))
            for child in vertex.below:
                devices += [child] if isinstance(child, int) else walk(child)
            return devices

        walk(self.root)
        return found

    @cached_property
    def _ancestors(self) -> NDArray[np.int64]:
        """Number of each device's ancestor by level, of shape (levels, devices).

        A device without an ancestor of a level has a negative number that no other device has.
        """
        without_ancestor = -1 - np.arange(self.devices)
        above = np.tile(without_ancestor, (len(self.levels), 1))
        for vertex, number, devices in self._vertices:
            above[self._level(vertex.level), devices] = number
        return above

    def _level(self, level: str) -> int:
        if level not in self.levels:
            raise ValueError(f"no vertex is of level {level!r}; there are {', '.join(self.levels)}")
        return self.levels.index(level)


def flat_topology(nodes: Iterable[Vertex]) -> Topology:
    """Return the topology of nodes without known links: all nodes are equally far apart."""
    return Topology(Vertex("cluster", "cluster", tuple(nodes)))


def check_costs(costs: Mapping[str, float]) -> None:
    """Check that costs by level, innermost first, are finite and do not fall.

    Raises
    ------
    ConfigError
        If they are invalid; the message names the level.
    """
    inner, least = "a device", 0.0
    for level, cost in costs.items():
        if not (math.isfinite(cost) and cost >= least):
            raise ConfigError(
                f"cost of {level} is {cost:g}, must be a finite number >= {least:g}, the cost of "
                f"{inner}"
            )
        inner, least = level, cost
