"""Switches that aggregate for a job, from the topology and the nodes of the job."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from presage.schedulers.core.topology import Topology, Vertex


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
    required = set(nodes)
    known = {vertex.name for vertex in topology.vertices if vertex.level == "node"}
    if unknown := required - known:
        raise ValueError(f"no node is called {min(unknown)!r}")
    meeting: list[Vertex] = []

    def walk(vertex: Vertex) -> bool:
        """Return whether nodes of the job are below the vertex; collect where they meet."""
        if vertex.level == "node":
            return vertex.name in required
        used = sum([walk(child) for child in vertex.below if isinstance(child, Vertex)])
        if used > 1:
            meeting.append(vertex)
        return used > 0

    walk(topology.root)
    if not meeting or not meeting[-1].inc_slots:  # the lowest common ancestor is left last
        return ()
    return tuple(_switch(vertex) for vertex in meeting if vertex.inc_slots)


def _switch(vertex: Vertex) -> Switch:
    return Switch(f"{vertex.level}/{vertex.name}", vertex.inc_slots)
