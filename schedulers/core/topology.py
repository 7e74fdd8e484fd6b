"""How near devices are to each other: a tree over their numbers, and what each level of it costs.

Two devices communicate through the innermost vertex that both are below, their lowest common
ancestor. Its level says what the slowest link between them is, and a table what that costs,
relative to NVLink (requirements C1 and C3). So costs are at the vertices; put on the links, that
from a vertex up to its parent would weigh half of what their costs differ by, and a path would
weigh what its uppermost vertex costs.
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

# What communication costs by level, innermost first, relative to NVLink (requirement C3).
COSTS: Mapping[str, float] = MappingProxyType(
    {
        "nvlink": 1.0,
        "pix": 2.0,  # at most one PCIe bridge
        "pxb": 3.0,  # several PCIe bridges, and no host bridge
        "phb": 4.0,  # a PCIe host bridge
        "numa": 4.0,  # several host bridges of one NUMA node: "NODE" in nvidia-smi's words
        "node": 5.0,  # the links between sockets, "SYS"; also where nothing is known of a node
        "rack": 10.0,
        "spine": 20.0,
        "cluster": 40.0,
    }
)


@dataclass(frozen=True, slots=True)
class Vertex:
    """What joins devices: a switch, a socket, a node, a rack.

    Attributes
    ----------
    name : str
        Unlike that of any other vertex of its level.
    level : str
        As in the table of costs.
    below : tuple of Vertex and int
        What it joins: vertices of levels further in, and devices by their numbers.
    """

    name: str
    level: str
    below: tuple[Vertex | int, ...]


class _Found(NamedTuple):
    """A vertex, its number in depth-first order, and the devices below it."""

    vertex: Vertex
    number: int
    devices: list[int]


@dataclass(frozen=True)
class Topology:
    """A tree over the devices 0, 1, ... of a cluster.

    Attributes
    ----------
    root : Vertex
        Above all devices.
    costs : Mapping of str to float
        Of each level, innermost first; relative, at least 0, and never less further out, so that
        costs are an ultrametric.
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
                    f"two of level {vertex.level!r} are called {vertex.name!r}; rename one"
                )
            named.add((vertex.level, vertex.name))
            if not below:
                raise ConfigError(
                    f"{vertex.level} {vertex.name!r} has no device below it; leave it out"
                )
        devices = sorted(self._vertices[0].devices)
        wrong = next((i for i, device in enumerate(devices) if device != i), None)
        if wrong is not None:
            twice = devices[wrong] < wrong
            raise ConfigError(
                f"device {devices[wrong] if twice else wrong} is in the tree "
                f"{'twice' if twice else 'nowhere'}; name each once, from 0 on"
            )

    def _check_levels(self, vertex: Vertex) -> None:
        inwards = list(self.costs)
        for one in (vertex, *vertex.below):
            if not isinstance(one, int) and one.level not in inwards:
                raise ConfigError(
                    f"{one.name!r} is of level {one.level!r}, which costs nothing; "
                    f"known are {', '.join(inwards)}"
                )
        for one in vertex.below:
            if isinstance(one, int):
                continue
            if inwards.index(one.level) >= inwards.index(vertex.level):
                raise ConfigError(
                    f"{one.level} {one.name!r} is below {vertex.level} {vertex.name!r}; levels "
                    f"are, from the innermost, {', '.join(inwards)}"
                )
            self._check_levels(one)

    # What is where --------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self._vertices[0].devices)

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Those that have a vertex, innermost first."""
        there = {one.vertex.level for one in self._vertices}
        return tuple(level for level in self.costs if level in there)

    @cached_property
    def vertices(self) -> tuple[Vertex, ...]:
        """By their numbers, which are their places in depth-first order."""
        return tuple(one.vertex for one in self._vertices)

    def ancestor(self, level: str) -> NDArray[np.int64]:
        """Number of the vertex of a level that each device is below; -1 where there is none.

        Returns
        -------
        ndarray of shape (devices,)

        Raises
        ------
        ValueError
            No vertex is of that level.
        """
        above: NDArray[np.int64] = np.maximum(self._above[self._level(level)], -1)
        return above

    def below(self, level: str, name: str) -> NDArray[np.int64]:
        """Numbers of the devices below a vertex, ascending.

        Raises
        ------
        ValueError
            There is no such vertex.
        """
        for vertex, _, devices in self._vertices:
            if vertex.level == level and vertex.name == name:
                return np.array(sorted(devices), np.int64)
        raise ValueError(f"no {level} is called {name!r}")

    @cached_property
    def depth_first(self) -> NDArray[np.int64]:
        """The devices so that those below a vertex are next to each other."""
        return np.array(self._vertices[0].devices, np.int64)

    # What it costs --------------------------------------------------------------------------

    def distance(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
        """Cost of communication between devices: their lowest common ancestor's, 0 within one.

        Parameters
        ----------
        a, b : int or array of int
            Devices, of shapes that broadcast; ``distance(ring, np.roll(ring, -1))`` are the costs
            of a ring's edges.

        Returns
        -------
        ndarray of the broadcast shape
        """
        costs = np.array([self.costs[level] for level in self.levels])
        return np.where(np.equal(a, b), 0.0, costs[self.meeting(a, b)])

    def meeting(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.int64]:
        """Place in ``levels`` of the level at which devices meet: their lowest common ancestor's.

        Of shapes that broadcast, as for :meth:`distance`.
        """
        a, b = np.asarray(a), np.asarray(b)
        found = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        for level in reversed(range(len(self.levels))):
            above = self._above[level]
            np.copyto(found, level, where=above[a] == above[b])
        return found

    def distances(self, devices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Cost of communication between each two of some devices (msc of requirement C1).

        Returns
        -------
        ndarray of shape (len(devices), len(devices))
            Nothing larger is kept: the tree itself is an array of shape (levels, devices).
        """
        some = np.asarray(devices)
        return self.distance(some[:, None], some[None, :])

    # How it is kept -------------------------------------------------------------------------

    @cached_property
    def _vertices(self) -> list[_Found]:
        """All of them, depth first."""
        found: list[_Found] = []

        def walk(vertex: Vertex) -> list[int]:
            devices: list[int] = []
            found.append(_Found(vertex, len(found), devices))
            for one in vertex.below:
                devices += [one] if isinstance(one, int) else walk(one)
            return devices

        walk(self.root)
        return found

    @cached_property
    def _above(self) -> NDArray[np.int64]:
        """By level and device, the vertex's number; where there is none, one that is like no other.

        Shape (levels, devices).
        """
        alone = -1 - np.arange(self.devices)
        above = np.tile(alone, (len(self.levels), 1))
        for vertex, number, devices in self._vertices:
            above[self._level(vertex.level), devices] = number
        return above

    def _level(self, level: str) -> int:
        if level not in self.levels:
            raise ValueError(f"no vertex is of level {level!r}; there are {', '.join(self.levels)}")
        return self.levels.index(level)


def of_nodes(nodes: Iterable[Vertex]) -> Topology:
    """Nodes of which nobody said how they hang together: as far from each other as can be."""
    return Topology(Vertex("cluster", "cluster", tuple(nodes)))


def check_costs(costs: Mapping[str, float]) -> None:
    """Costs by level, innermost first, are numbers that never fall.

    Raises
    ------
    ConfigError
        Names the level.
    """
    inner, least = "a device", 0.0
    for level, cost in costs.items():
        if not (math.isfinite(cost) and cost >= least):
            raise ConfigError(
                f"{level} costs {cost:g}, must be a finite number >= {least:g}, the cost of {inner}"
            )
        inner, least = level, cost
