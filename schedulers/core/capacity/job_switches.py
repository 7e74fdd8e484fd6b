"""Switches that aggregate for a job, from the topology and the nodes of the job."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from presage.schedulers.core.topology import Topology, Vertex

_Id = tuple[str, str]  # level and name of a vertex


class Switch(NamedTuple):
    """Switch with in-network computing.

    Attributes
    ----------
    name : str
        Level and name of its vertex, such as "rack/r0".
    slots : int
        Jobs that it can aggregate for at a time.
    """

    name: str
    slots: int


def switches(topology: Topology) -> tuple[Switch, ...]:
    """Return all switches that have slots, in depth-first order."""
    return tuple(_switch(vertex) for vertex in topology.vertices if vertex.inc_slots)


def job_switches(topology: Topology, nodes: Collection[str]) -> tuple[Switch, ...]:
    """Return the switches that a job on these nodes uses: all of them, or none.

    They are the vertices with slots at which the paths from the nodes to their lowest common
    ancestor meet. A vertex with the nodes of the job below one child only passes data on, and so
    does one without slots. The last sum is computed at the lowest common ancestor; if it has no
    slots, the job uses no switch.

    Returns
    -------
    tuple of Switch
        Inner ones first, the lowest common ancestor last; empty if the job uses none, for example
        because it runs on one node.

    Raises
    ------
    ValueError
        A node is unknown.
    """
    required, paths = set(nodes), topology.node_paths
    if unknown := required - paths.keys():
        raise ValueError(f"no node is called {min(unknown)!r}")
    below: dict[_Id, set[_Id]] = {}  # children with nodes of the job
    last: dict[_Id, tuple[int, int]] = {}  # position of the last node below, and the height
    slots: dict[_Id, int] = {}
    for position, node in enumerate(name for name in paths if name in required):
        child = ("node", node)
        for height, vertex in enumerate(paths[node]):
            parent = (vertex.level, vertex.name)
            below.setdefault(parent, set()).add(child)
            last[parent] = (position, max(height, last.get(parent, (0, 0))[1]))
            slots[parent] = vertex.inc_slots
            child = parent
    meeting = sorted((one for one in below if len(below[one]) > 1), key=last.__getitem__)
    if not meeting or not slots[meeting[-1]]:
        return ()
    return tuple(Switch("/".join(one), slots[one]) for one in meeting if slots[one])


def _switch(vertex: Vertex) -> Switch:
    return Switch(f"{vertex.level}/{vertex.name}", vertex.inc_slots)
