"""What a cluster file says of how its devices hang together.

.. code-block:: yaml

    nodes:
      - {name: "n[00-15]", devices: 8, kind: h200, within: nvswitch}
      - {name: "n[16-31]", devices: 8, kind: v100, within: n16.topo.txt}
    topology:
      groups:  # from the innermost; each has members of the one before, first of nodes
        rack: {r0: "n[00-07]", r1: "n[08-15]", r2: "n[16-23]", r3: "n[24-31]"}
        spine: 2  # every two racks in their order
      costs: {rack: 12}  # what differs from presage.schedulers.core.topology.COSTS
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.cluster_files.hostlist import hosts
from presage.schedulers.cluster_files.nvidia_topo import joined, read_links
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import COSTS, Topology, Vertex, check_costs
from presage.system.known_names import check_known, did_you_mean

Inside = Callable[[str, range], Vertex]
"""Makes a node's tree of its name and the numbers of its devices."""

# Devices that a vertex joins, all of a node's at 0, and its level.
INSIDES: Mapping[str, tuple[int, str]] = {
    "nvswitch": (0, "nvlink"),
    "nvlink-pairs": (2, "nvlink"),
    "nvlink-quads": (4, "nvlink"),
    "pcie": (0, "phb"),
}


def inside(within: str, node: Node, folder: Path, where: str) -> Inside:
    """What ``within`` of a node says: one of a few shapes, or a listing of ``nvidia-smi topo -m``.

    Parameters
    ----------
    folder : Path
        Which the listing's path starts from.

    Raises
    ------
    ConfigError
        It is neither, or of another number of devices than the node.
    """
    if within in INSIDES:
        size, level = INSIDES[within]
        if node.devices % (size or node.devices):
            raise ConfigError(
                f"{where}.within: {within} for {node.devices} devices; give nodes a multiple of "
                f"{size}, or a listing"
            )
        return _alike(size or node.devices, level)
    path = folder / within
    try:
        links = read_links(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"{where}.within {within!r} is neither a shape nor a listing ({path}: {why}); "
            f"{did_you_mean(within, INSIDES)}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(links) != node.devices:
        raise ConfigError(
            f"{where}: {path} lists {len(links)} GPUs, and a node has {node.devices} devices"
        )
    return lambda name, devices: joined(links, name, devices.start)


def wired(cluster: Cluster, insides: Sequence[Inside | None], section: Any) -> Topology:
    """The tree of a cluster.

    Parameters
    ----------
    insides : sequence of functions
        One a node; None where nothing is known of it.
    section : Any
        What stands below ``topology``.

    Raises
    ------
    ConfigError
        Names the key, and what is unknown in it, twice, or missing.
    """
    if not isinstance(section, dict):
        raise ConfigError("topology is no mapping; write `groups:` and `costs:` below it")
    check_known(section, ("groups", "costs"), "topology.")
    groups, costs = _by_level(section, "groups"), _by_level(section, "costs")
    table = _costs(costs)
    check_known(groups, table, "topology.groups.")
    members = {
        node.name: _node(node, cluster.devices_of(i), insides[i])
        for i, node in enumerate(cluster.nodes)
    }
    of = "node"
    for level, given in groups.items():
        members = _grouped(members, of, level, given)
        of = level
    topology = Topology(Vertex("cluster", "cluster", tuple(members.values())), table)
    unused = [level for level in costs if level not in COSTS and level not in topology.levels]
    if unused:
        raise ConfigError(
            f"topology.costs.{unused[0]}: nothing is of that level; "
            f"{did_you_mean(unused[0], COSTS)}"
        )
    return topology


def _by_level(section: dict[Any, Any], key: str) -> dict[str, Any]:
    given = section.get(key)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ConfigError(f"topology.{key} is no mapping; write it as {{rack: ...}}")
    return {str(level): value for level, value in given.items()}


def _alike(size: int, level: str) -> Inside:
    def made(name: str, devices: range) -> Vertex:
        parts = (
            Vertex(f"{name}.{level}{i}", level, tuple(devices[i : i + size]))
            for i in range(0, len(devices), size)
        )
        return Vertex(name, "node", tuple(parts))

    return made


def _node(node: Node, devices: range, made: Inside | None) -> Vertex:
    return Vertex(node.name, "node", tuple(devices)) if made is None else made(node.name, devices)


def _grouped(members: Mapping[str, Vertex], of: str, level: str, given: Any) -> dict[str, Vertex]:
    """Groups of a level, by name: each member is in one."""
    where = f"topology.groups.{level}"
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        names = list(members)
        given = {
            f"{level}{i}": names[first : first + given]
            for i, first in enumerate(range(0, len(names), given))
        }
    elif isinstance(given, dict):
        given = {str(name): _members(some, f"{where}.{name}") for name, some in given.items()}
    else:
        raise ConfigError(
            f'{where} is no mapping; write {{r0: "n[0-7]", r1: "n[8-15]"}}, or how many {of}s '
            "make a group"
        )
    left = dict(members)
    found: dict[str, Vertex] = {}
    for name, some in given.items():
        check_known(some, members, f"{where}.{name}: {of} ")
        for one in some:
            if one not in left:
                raise ConfigError(f"{where}.{name}: {of} {one!r} is in a group for the second time")
            del left[one]
        found[name] = Vertex(name, level, tuple(members[one] for one in some))
    if left:
        raise ConfigError(f"{where}: {of} {next(iter(left))!r} is in no group; add it to one")
    return found


def _members(given: Any, where: str) -> list[str]:
    if not isinstance(given, str):
        raise ConfigError(f'{where}={given!r} is not text; write it as "n[0-7]"')
    try:
        return hosts(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _costs(given: Mapping[str, Any]) -> dict[str, float]:
    """The whole table, innermost first: a level of the user's own goes where its cost puts it."""
    for level, cost in given.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            raise ConfigError(f"topology.costs.{level}={cost!r} is not a number")
    table = {level: float(given.get(level, cost)) for level, cost in COSTS.items()}
    try:
        check_costs(table)
    except ConfigError as error:
        raise ConfigError(f"topology.costs: {error}") from None
    own = {level: float(cost) for level, cost in given.items() if level not in COSTS}
    # A stable sort: among equals the table's own are further in.
    return dict(sorted({**table, **own}.items(), key=lambda one: one[1]))
