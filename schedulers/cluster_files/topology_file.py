"""Parser of the topology section of a cluster file.

.. code-block:: yaml

    nodes:
      - {name: "n[00-15]", devices: 8, kind: h200, within: nvswitch}
      - {name: "n[16-31]", devices: 8, kind: v100, within: n16.topo.txt}
    topology:
      groups:  # innermost first; each level groups members of the level before, first nodes
        rack: {r0: "n[00-07]", r1: "n[08-15]", r2: "n[16-23]", r3: "n[24-31]"}
        spine: 2  # groups of two racks, in order
      costs: {rack: 12}  # overrides presage.schedulers.core.topology.COSTS
      inc: {rack: 1}  # slots of the switches that compute; see switch_slots
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.cluster_files.hostlist import expand_hostlist
from presage.schedulers.cluster_files.nvidia_topo import build_node_tree, read_links
from presage.schedulers.cluster_files.switch_slots import with_slots
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import COSTS, Topology, Vertex, check_costs
from presage.system.text.known_names import check_known, did_you_mean

NodeLayout = Callable[[str, range], Vertex]
"""Function that builds a node's tree from its name and the numbers of its devices."""

# Devices that a vertex joins (0 for all of a node), and its level.
NODE_LAYOUTS: Mapping[str, tuple[int, str]] = {
    "nvswitch": (0, "nvlink"),
    "nvlink-pairs": (2, "nvlink"),
    "nvlink-quads": (4, "nvlink"),
    "pcie": (0, "phb"),
}


def node_layout(within: str, node: Node, folder: Path, where: str) -> NodeLayout:
    """Return the layout named by ``within``: a known one, or a ``nvidia-smi topo -m`` listing.

    Parameters
    ----------
    folder : Path
        Base folder of the listing's path.

    Raises
    ------
    ConfigError
        ``within`` is neither, or has another number of devices than the node.
    """
    if within in NODE_LAYOUTS:
        size, level = NODE_LAYOUTS[within]
        if node.devices % (size or node.devices):
            raise ConfigError(
                f"{where}.within: {within} for {node.devices} devices; give nodes a multiple of "
                f"{size}, or a listing"
            )
        return _uniform_layout(size or node.devices, level)
    path = folder / within
    try:
        links = read_links(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"{where}.within {within!r} is neither a known layout nor a listing "
            f"({path}: {reason}); {did_you_mean(within, NODE_LAYOUTS)}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(links) != node.devices:
        raise ConfigError(
            f"{where}: {path} lists {len(links)} GPUs, and a node has {node.devices} devices"
        )
    return lambda name, devices: build_node_tree(links, name, devices.start)


def parse_topology(
    cluster: Cluster, layouts: Sequence[NodeLayout | None], section: Any
) -> Topology:
    """Return the topology of a cluster.

    Parameters
    ----------
    layouts : sequence of functions
        Layout of each node; None if unknown.
    section : Any
        Content of the key ``topology``.

    Raises
    ------
    ConfigError
        A key or member is unknown, duplicate or missing; the message names it.
    """
    if not isinstance(section, dict):
        raise ConfigError("topology is not a mapping; write `groups:` and `costs:` below it")
    check_known(section, ("groups", "costs", "inc"), "topology.")
    groups, costs, inc = (_by_level(section, key) for key in ("groups", "costs", "inc"))
    table = _parse_costs(costs)
    check_known(groups, table, "topology.groups.")
    members = {
        node.name: _node_vertex(node, cluster.devices_of(i), layouts[i])
        for i, node in enumerate(cluster.nodes)
    }
    member_level = "node"
    for level, group in groups.items():
        members = _group(members, member_level, level, group)
        member_level = level
    root = Vertex("cluster", "cluster", tuple(members.values()))
    topology = Topology(with_slots(root, inc, (*groups, "cluster")), table)
    unused = [level for level in costs if level not in COSTS and level not in topology.levels]
    if unused:
        raise ConfigError(
            f"topology.costs.{unused[0]}: no group has that level; {did_you_mean(unused[0], COSTS)}"
        )
    return topology


def _by_level(section: dict[Any, Any], key: str) -> dict[str, Any]:
    levels = section.get(key)
    if levels is None:
        return {}
    if not isinstance(levels, dict):
        raise ConfigError(f"topology.{key} is not a mapping; write it as {{rack: ...}}")
    return {str(level): value for level, value in levels.items()}


def _uniform_layout(size: int, level: str) -> NodeLayout:
    def layout(name: str, devices: range) -> Vertex:
        parts = (
            Vertex(f"{name}.{level}{i}", level, tuple(devices[i : i + size]))
            for i in range(0, len(devices), size)
        )
        return Vertex(name, "node", tuple(parts))

    return layout


def _node_vertex(node: Node, devices: range, layout: NodeLayout | None) -> Vertex:
    if layout is None:
        return Vertex(node.name, "node", tuple(devices))
    return layout(node.name, devices)


def _group(
    members: Mapping[str, Vertex], member_level: str, level: str, spec: Any
) -> dict[str, Vertex]:
    """Return the groups of a level by name; each member is in exactly one group."""
    where = f"topology.groups.{level}"
    if isinstance(spec, int) and not isinstance(spec, bool) and spec > 0:
        names = list(members)
        groups = {
            f"{level}{i}": names[first : first + spec]
            for i, first in enumerate(range(0, len(names), spec))
        }
    elif isinstance(spec, dict):
        groups = {str(name): _parse_members(text, f"{where}.{name}") for name, text in spec.items()}
    else:
        raise ConfigError(
            f'{where} is not a mapping; write {{r0: "n[0-7]", r1: "n[8-15]"}}, or the number of '
            f"{member_level}s in a group"
        )
    ungrouped = dict(members)
    found: dict[str, Vertex] = {}
    for name, group in groups.items():
        check_known(group, members, f"{where}.{name}: {member_level} ")
        for member in group:
            if member not in ungrouped:
                raise ConfigError(f"{where}.{name}: {member_level} {member!r} is in two groups")
            del ungrouped[member]
        found[name] = Vertex(name, level, tuple(members[member] for member in group))
    if ungrouped:
        raise ConfigError(
            f"{where}: {member_level} {next(iter(ungrouped))!r} is in no group; add it to one"
        )
    return found


def _parse_members(text: Any, where: str) -> list[str]:
    if not isinstance(text, str):
        raise ConfigError(f'{where}={text!r} is not text; write it as "n[0-7]"')
    try:
        return expand_hostlist(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _parse_costs(costs: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost of every level, innermost first; new levels are ordered by their cost."""
    for level, cost in costs.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            raise ConfigError(f"topology.costs.{level}={cost!r} is not a number")
    table = {level: float(costs.get(level, cost)) for level, cost in COSTS.items()}
    try:
        check_costs(table)
    except ConfigError as error:
        raise ConfigError(f"topology.costs: {error}") from None
    new = {level: float(cost) for level, cost in costs.items() if level not in COSTS}
    # A stable sort: among equal costs the known levels are further in.
    return dict(sorted({**table, **new}.items(), key=lambda item: item[1]))
