"""Reader of clusters from YAML files.

.. code-block:: yaml

    nodes:
      - {name: "n[00-31]", devices: 8, kind: v100, within: nvlink-quads}
      - {name: m0, devices: 4, kind: mine, memory_gib: 24}
    topology: ...  # see presage.schedulers.cluster_files.topology_file
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from presage.errors import ConfigError
from presage.features.device.device import known_device, similar_kinds
from presage.schedulers.cluster_files.hostlist import expand_hostlist
from presage.schedulers.cluster_files.openb_nodes import read_openb_nodes
from presage.schedulers.cluster_files.topology_file import NodeLayout, node_layout, parse_topology
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import Topology
from presage.system.files.yaml_file import read_yaml
from presage.system.text.known_names import check_known

_MOST_GIB = 1_000_000  # of a device
_KEYS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": ((str,), "text"),
    "devices": ((int,), "an integer"),
    "kind": ((str,), "text"),
    "memory_gib": ((int, float), "a number (to YAML, 1e3 is text)"),
    "within": ((str,), "text"),
}


def read_cluster(path: Path) -> Cluster:
    """Read the nodes of a cluster, in the order of the file, and their topology.

    A .csv file, plain or .gz, is read as openb's list of nodes.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or a node or the topology is invalid; the message names the
        key.
    """
    if path.name.endswith((".csv", ".csv.gz")):
        return read_openb_nodes(path)
    content = read_yaml(path, "a cluster file")
    entries = content.get("nodes") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{path}: no nodes; write `nodes:`, below it `- {{name: n0, devices: 8, kind: v100}}`"
        )
    try:
        check_known(content, ("nodes", "topology"), "")
        nodes: list[Node] = []
        layouts: list[NodeLayout | None] = []
        for i, entry in enumerate(entries):
            where = f"nodes[{i}]"
            group = _parse_nodes(entry, where)
            within = entry.get("within")
            layout = None if within is None else node_layout(within, group[0], path.parent, where)
            nodes += group
            layouts += [layout] * len(group)
        cluster = Cluster(tuple(nodes))
        return Cluster(cluster.nodes, _make_topology(cluster, layouts, content.get("topology")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _make_topology(
    cluster: Cluster, layouts: list[NodeLayout | None], section: Any
) -> Topology | None:
    """Return the topology of a cluster; None if the file describes none."""
    if section is None and not any(layouts):
        return None
    return parse_topology(cluster, layouts, {} if section is None else section)


def _parse_nodes(entry: Any, where: str) -> list[Node]:
    """Return the nodes of one entry, which differ only in their names."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a mapping; write {{name: n0, devices: 8, kind: v100}}")
    check_known(entry, _KEYS, f"{where}.")
    for key, value in entry.items():
        types, must_be = _KEYS[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise ConfigError(f"{where}.{key}={value!r} is not {must_be}")
    missing = [key for key in ("name", "devices", "kind") if key not in entry]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing")
    memory_bytes = _memory_bytes(entry, where)
    try:
        names = expand_hostlist(entry["name"])
    except ConfigError as error:
        raise ConfigError(f"{where}.name: {error}") from None
    if not names:
        raise ConfigError(f"{where}.name is empty; give every node a name")
    return [Node(name, entry["devices"], entry["kind"], memory_bytes) for name in names]


def _memory_bytes(entry: dict[str, Any], where: str) -> int:
    if "memory_gib" in entry:
        if not 0 < entry["memory_gib"] <= _MOST_GIB:
            raise ConfigError(
                f"{where}.memory_gib={entry['memory_gib']}, must be above 0 and at most "
                f"{_MOST_GIB:,}"
            )
        return int(entry["memory_gib"] * 2**30)
    device = known_device(entry["kind"])
    if device is None:
        raise ConfigError(
            f"{where}.kind: no device of kind {entry['kind']!r} is in the catalogue; "
            f"{similar_kinds(entry['kind'])} Else give its memory_gib, or its data sheet with "
            "--devices FILE"
        )
    return device.memory_bytes
