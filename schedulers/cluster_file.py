"""A cluster from a YAML file.

.. code-block:: yaml

    nodes:
      - {name: n0, devices: 8, kind: v100}
      - {name: n1, devices: 4, kind: mine, memory_gib: 24}
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from presage.features.device import known_device, nearest_kind
from presage.features.errors import ConfigError
from presage.schedulers.cluster import Cluster, Node
from presage.schedulers.openb_nodes import read_openb_nodes

_KEYS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": ((str,), "text"),
    "devices": ((int,), "a whole number"),
    "kind": ((str,), "text"),
    "memory_gib": ((int, float), "a number"),
}


def read_cluster(path: Path) -> Cluster:
    """The nodes of a file, in its order; of a .csv, plain or .gz, openb's list of nodes.

    Raises
    ------
    ConfigError
        The file is missing or no YAML, or a node is wrong; names the node and what to mend.
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
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    nodes = content.get("nodes") if isinstance(content, dict) else None
    if not isinstance(nodes, list) or not nodes:
        raise ConfigError(
            f"{path}: no nodes; write `nodes:`, below it `- {{name: n0, devices: 8, kind: v100}}`"
        )
    try:
        return Cluster(tuple(_node(one, f"nodes[{i}]") for i, one in enumerate(nodes)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _node(given: Any, where: str) -> Node:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is no mapping; write {{name: n0, devices: 8, kind: v100}}")
    for key, value in given.items():
        if key not in _KEYS:
            near = get_close_matches(str(key), _KEYS, n=1)
            hint = f"nearest is {near[0]!r}" if near else f"known are {', '.join(_KEYS)}"
            raise ConfigError(f"{where}.{key} is not known; {hint}")
        types, what = _KEYS[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise ConfigError(f"{where}.{key}={value!r} is not {what}")
    missing = [key for key in ("name", "devices", "kind") if key not in given]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing")
    return Node(given["name"], given["devices"], given["kind"], _memory_bytes(given, where))


def _memory_bytes(given: dict[str, Any], where: str) -> int:
    if "memory_gib" in given:
        return int(given["memory_gib"] * 2**30)
    device = known_device(given["kind"])
    if device is None:
        raise ConfigError(
            f"{where}.kind {given['kind']!r} is in no catalogue, {nearest_kind(given['kind'])}; "
            "say its memory_gib"
        )
    return device.memory_bytes
