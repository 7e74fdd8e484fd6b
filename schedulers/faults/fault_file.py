"""Reader of fault files: InfiniteHBD's trace, or CSV with ``at_s,node,event``; also gzipped.

An optional column ``device`` has the number of a device in its node, from 0, or the name of the
device; the whole node fails where it is empty.

.. code-block:: text

    at_s,node,device,event
    3600,n7,,fail
    9000,n7,,repair
    9500,n7,3,fail
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
DEVICE = "device"  # optional column
_EVENTS = ("fail", "repair")


def read_faults(
    path: Path, cluster: Cluster, *, seed: int, from_day: float = 0.0
) -> tuple[Fault, ...]:
    """Read the faults of a cluster's nodes and devices, by time; see :func:`read_outages`."""
    return outages_to_faults(read_outages(path, cluster, seed=seed, from_day=from_day)[1])


def read_outages(
    path: Path, cluster: Cluster, *, seed: int, from_day: float = 0.0
) -> tuple[list[Outage], list[Outage]]:
    """Read the outages of a cluster's nodes and devices.

    Parameters
    ----------
    seed : int
        Random seed of the mapping from traced nodes to nodes of the cluster. No effect on CSV
        files, which name the nodes.
    from_day : float
        Day of the file that is the simulation's second 0; nodes that are down then fail at once.

    Returns
    -------
    earlier : list of Outage
        Outages that were over by then, at negative times.
    outages : list of Outage
        All others.

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
    earlier, found = list[Outage](), list[Outage]()
    for one in outages:
        from_s, until_s = one.from_s - start_s, one.until_s - start_s
        if until_s < 0:
            earlier.append(one._replace(from_s=from_s, until_s=until_s))
        else:
            found.append(one._replace(from_s=max(0.0, from_s), until_s=until_s))
    return earlier, found


def _parse_csv(text: str, cluster: Cluster) -> tuple[list[Outage], float]:
    """Return the outages and the time of the last event.

    Lines may have any order; the events of a node or device alternate in time.
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
        (_parse_event(row, numbers, cluster, rows.line_num) for row in rows),
        key=lambda event: event[0],
    )
    down: dict[tuple[int, int | None], float] = {}
    found: list[Outage] = []
    for at_s, node, device, repaired, line in events:
        unit = node, device
        name = cluster.nodes[node].name if device is None else cluster.name_of(device)
        if repaired != (unit in down):
            raise TableError(
                f"line {line}: {name} {'is repaired' if repaired else 'fails'} and is "
                f"{'not' if repaired else 'already'} down; drop the line, or add the one before it"
            )
        if repaired:
            found.append(Outage(node, down.pop(unit), at_s, device))
        else:
            down[unit] = at_s
    found += [Outage(node, from_s, math.inf, device) for (node, device), from_s in down.items()]
    return found, events[-1][0] if events else 0.0


def _parse_event(
    row: dict[str, str], numbers: dict[str, int], cluster: Cluster, line: int
) -> tuple[float, int, int | None, bool, int]:
    """Return time, node, device or None, whether it is a repair, and line."""
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
    node = numbers[row["node"]]
    device = _parse_device(row.get(DEVICE) or "", node, cluster, line)
    return at_s, node, device, row["event"] == "repair", line


def _parse_device(text: str, node: int, cluster: Cluster, line: int) -> int | None:
    """Return the number in the cluster of a device, given as 3 or n7/3; None for ""."""
    name, there = cluster.nodes[node].name, cluster.devices_of(node)
    number = text.strip().removeprefix(f"{name}/")
    if not number:
        return None
    if (
        not (number.isascii() and number.isdigit())
        or len(number) > 9
        or (int(number) >= len(there))
    ):
        raise TableError(
            f"line {line}: device {text!r} is not on node {name}; name one from 0 to "
            f"{len(there) - 1}, or leave the field empty for the whole node"
        )
    return there[int(number)]
