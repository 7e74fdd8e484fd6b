"""Reader of the nodes of Alibaba's openb trace: CSV ``sn,cpu_milli,memory_mib,gpu,model``."""

from __future__ import annotations

from pathlib import Path

from presage.errors import ConfigError, TableError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.traces.csv_table import Table, open_text
from presage.schedulers.traces.public_formats.openb import KINDS, memory_bytes
from presage.schedulers.traces.row import Row

_COLUMNS = ("sn", "gpu", "model")


def read_openb_nodes(path: Path) -> Cluster:
    """Read the nodes with GPUs, in the order of the file.

    Raises
    ------
    ConfigError
        The file is missing or not such a list; the message names the line and the column.
    """
    try:
        with open_text(path) as file:
            table = Table(path, file)
            missing = [name for name in _COLUMNS if name not in table.header]
            if missing:
                raise ConfigError(
                    f"{path}: no column {missing[0]!r}; a CSV cluster file has openb's columns "
                    "sn,cpu_milli,memory_mib,gpu,model; describe other clusters in YAML"
                )
            nodes = tuple(_node(row) for row in table.rows() if row.count("gpu"))
    except TableError as error:
        raise ConfigError(str(error)) from None
    try:
        return Cluster(nodes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _node(row: Row) -> Node:
    kind = row.read("model", KINDS.__getitem__, f"one of {', '.join(KINDS)}")
    return Node(row.text("sn"), row.count("gpu"), kind, memory_bytes(kind))
