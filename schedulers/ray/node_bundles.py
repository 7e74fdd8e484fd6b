"""Bundles of a placement group: what a live cluster reserves on each node of Ray. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from presage.errors import ConfigError


class NodeBundle(NamedTuple):
    """Devices that are reserved on one node.

    Attributes
    ----------
    cpus, gpus : int
        Processors and GPUs. The devices are the GPUs, or without GPUs all processors together.
    """

    cpus: int
    gpus: int

    def resources(self) -> dict[str, float]:
        """Return the bundle as Ray writes it."""
        named = {"CPU": float(self.cpus), "GPU": float(self.gpus)}
        return {name: count for name, count in named.items() if count}


def node_bundles(
    nodes: Sequence[Mapping[str, Any]],
    *,
    count: int | None = None,
    cpus: int | None = None,
    gpus: int | None = None,
) -> list[NodeBundle]:
    """Return one bundle for each node that is used, the largest first.

    Nodes without GPUs are not used if others have some, unless ``gpus`` is 0.

    Parameters
    ----------
    nodes : sequence of mapping
        Rows of ``ray.nodes()``.
    count : int, optional
        Number of nodes; by default all that have the devices.
    cpus, gpus : int, optional
        What to reserve on each node; by default all that it has.

    Raises
    ------
    ConfigError
        Fewer nodes have the devices.
    """
    alive = [row.get("Resources", {}) for row in nodes if row.get("Alive")]
    there = [NodeBundle(int(row.get("CPU", 0)), int(row.get("GPU", 0))) for row in alive]
    if gpus is None and any(node.gpus for node in there):
        there = [node for node in there if node.gpus]
    required_gpus, required_cpus = gpus or 0, cpus or 0
    fitting = [
        NodeBundle(
            node.cpus if cpus is None else cpus,
            node.gpus if gpus is None else gpus,
        )
        for node in there
        if node.gpus >= required_gpus and node.cpus >= required_cpus and (node.gpus or node.cpus)
    ]
    # Without processors and GPUs there is no device.
    found = sorted((one for one in fitting if any(one)), reverse=True, key=lambda one: one[::-1])
    if len(found) < (count or 1):
        each = f"{required_gpus or 'any'} GPUs and {required_cpus or 'any'} processors"
        raise ConfigError(
            f"{count or 1} nodes with {each} are requested, and {len(found)} of the {len(alive)} "
            "nodes of the Ray cluster have them; see `ray status`, and add nodes or request less"
        )
    return found[:count]
