"""A cluster from a YAML file.

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
from presage.schedulers.cluster_files.hostlist import hosts
from presage.schedulers.cluster_files.openb_nodes import read_openb_nodes
from presage.schedulers.cluster_files.topology_file import Inside, inside, wired
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import Topology
from presage.system.known_names import check_known

_MOST_GIB = 1_000_000  # of a device
_KEYS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": ((str,), "text"),
    "devices": ((int,), "a whole number"),
    "kind": ((str,), "text"),
    "memory_gib": ((int, float), "a number (to YAML, 1e3 is text)"),
    "within": ((str,), "text"),
}


def read_cluster(path: Path) -> Cluster:
    """The nodes of a file, in its order, and how they hang together.

    Of a .csv, plain or .gz, they are those of openb's list of nodes.

    Raises
    ------
    ConfigError
        The file is missing or no YAML, or a node or the topology is wrong; names what to mend.
    """
    import yaml

    if path.name.endswith((".csv", ".csv.gz")):
        return read_openb_nodes(path)
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name a cluster file"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    given = content.get("nodes") if isinstance(content, dict) else None
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"{path}: no nodes; write `nodes:`, below it `- {{name: n0, devices: 8, kind: v100}}`"
        )
    try:
        check_known(content, ("nodes", "topology"), "")
        nodes: list[Node] = []
        insides: list[Inside | None] = []
        for i, one in enumerate(given):
            where = f"nodes[{i}]"
            alike = _nodes(one, where)
            within = one.get("within")
            shared = None if within is None else inside(within, alike[0], path.parent, where)
            nodes += alike
            insides += [shared] * len(alike)
        cluster = Cluster(tuple(nodes))
        return Cluster(cluster.nodes, _wiring(cluster, insides, content.get("topology")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _wiring(cluster: Cluster, insides: list[Inside | None], section: Any) -> Topology | None:
    """How nodes hang together; None where nothing is said of it."""
    if section is None and not any(insides):
        return None
    return wired(cluster, insides, {} if section is None else section)


def _nodes(given: Any, where: str) -> list[Node]:
    """Nodes of one entry, alike but for their names."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is no mapping; write {{name: n0, devices: 8, kind: v100}}")
    check_known(given, _KEYS, f"{where}.")
    for key, value in given.items():
        types, what = _KEYS[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise ConfigError(f"{where}.{key}={value!r} is not {what}")
    missing = [key for key in ("name", "devices", "kind") if key not in given]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing")
    memory_bytes = _memory_bytes(given, where)
    try:
        names = hosts(given["name"])
    except ConfigError as error:
        raise ConfigError(f"{where}.name: {error}") from None
    if not names:
        raise ConfigError(f"{where}.name is empty; give every node a name")
    return [Node(name, given["devices"], given["kind"], memory_bytes) for name in names]


def _memory_bytes(given: dict[str, Any], where: str) -> int:
    if "memory_gib" in given:
        if not 0 < given["memory_gib"] <= _MOST_GIB:
            raise ConfigError(
                f"{where}.memory_gib={given['memory_gib']}, must be above 0 and at most "
                f"{_MOST_GIB:,}"
            )
        return int(given["memory_gib"] * 2**30)
    device = known_device(given["kind"])
    if device is None:
        raise ConfigError(
            f"{where}.kind: no device of kind {given['kind']!r} is in the catalogue; "
            f"{similar_kinds(given['kind'])} Else give its memory_gib, or its data sheet by "
            "--devices FILE"
        )
    return device.memory_bytes
