"""Reader of fault files: InfiniteHBD's trace, or CSV with ``at_s,node,event``; also gzipped.

.. code-block:: text

    at_s,node,event
    3600,n7,fail
    9000,n7,repair
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from presage.errors import ConfigError, TableError
from presage.features.hazard.fault_trace import DAY_S, parse_fault_trace, read_text
from presage.features.hazard.outage import Outage
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.faults.fault import Fault, outages_to_faults
from presage.system.text.known_names import check_known

COLUMNS = ("at_s", "node", "event")
_EVENTS = ("fail", "repair")


def read_faults(
    path: Path, cluster: Cluster, *, seed: int, from_day: float = 0.0
) -> tuple[Fault, ...]:
    """Read the faults of a cluster's nodes, by time.

    Parameters
    ----------
    seed : int
        Random seed of the mapping from traced nodes to nodes of the cluster. No effect on CSV
        files, which name the nodes.
    from_day : float
        Day of the file that is the simulation's second 0; nodes that are down then fail at once.

    Raises
    ------
    TableError
        The file is missing, has neither format, or is invalid; the message names the line or event.
    """
    text = read_text(path)
    try:
        if text.lstrip()[:1] in {"[", "{"}:
            trace = parse_fault_trace(text)
            outages, ends_s = trace.map_to(len(cluster.nodes), seed=seed), trace.days * DAY_S
        else:
            outages, ends_s = _parse_csv(text, cluster)
    except csv.Error as error:
        raise TableError(f"{path}: is not CSV ({error})") from None
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    start_s = from_day * DAY_S
    if not 0 <= start_s <= ends_s:
        raise TableError(f"{path}: has no day {from_day:g}; name one from 0 to {ends_s / DAY_S:g}")
    return outages_to_faults(
        one._replace(from_s=max(0.0, one.from_s - start_s), until_s=one.until_s - start_s)
        for one in outages
        if one.until_s >= start_s
    )


def _parse_csv(text: str, cluster: Cluster) -> tuple[list[Outage], float]:
    """Return the outages and the time of the last event.

    Lines may have any order; the events of a node alternate in time.
    """
    numbers = {node.name: i for i, node in enumerate(cluster.nodes)}
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise TableError(
            f"no column {missing[0]!r}; a fault file is CSV with at_s, node and event, or "
            "InfiniteHBD's JSON"
        )
    events = sorted(
        (_parse_event(row, numbers, rows.line_num) for row in rows), key=lambda event: event[0]
    )
    down: dict[int, float] = {}
    found: list[Outage] = []
    for at_s, node, repaired, line in events:
        name = cluster.nodes[node].name
        if repaired != (node in down):
            raise TableError(
                f"line {line}: {name} {'is repaired' if repaired else 'fails'} and is "
                f"{'not' if repaired else 'already'} down; drop the line, or add the one before it"
            )
        if repaired:
            found.append(Outage(node, down.pop(node), at_s))
        else:
            down[node] = at_s
    found += [Outage(node, from_s, math.inf) for node, from_s in down.items()]
    return found, events[-1][0] if events else 0.0


def _parse_event(
    row: dict[str, str], numbers: dict[str, int], line: int
) -> tuple[float, int, bool, int]:
    """Return time, node number, whether it is a repair, and line."""
    try:
        at_s = float(row["at_s"] or "")
    except ValueError:
        at_s = math.nan
    if not (math.isfinite(at_s) and at_s >= 0):
        raise TableError(f"line {line}: at_s={row['at_s']!r}, must be a number >= 0")
    try:
        check_known([row["node"]], numbers, f"line {line}: node ")
        check_known([row["event"]], _EVENTS, f"line {line}: event ")
    except ConfigError as error:
        raise TableError(str(error)) from None
    return at_s, numbers[row["node"]], row["event"] == "repair", line
