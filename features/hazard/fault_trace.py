"""Fault trace of InfiniteHBD, and the mapping of its nodes to those of another cluster.

JSON: a list of ``{"node_id": ..., "event_time": days, "event_type": "fault_start" | "fault_end",
"fault_type": {...}}``. Upstream: github.com/stepfun-ai/InfiniteHBD-Trace. The trace of another
cluster declares its number of nodes, and may declare its length in days, which is otherwise that of
its last event: ``{"nodes": 64, "days": 90.5, "events": [...]}``.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from presage.errors import TableError
from presage.features.hazard.outage import Outage, merge_outages

DAY_S = 86_400.0
NODES = 400  # traced nodes of eight GPUs each; the file names only the nodes that failed


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Outages of the nodes of a traced cluster.

    Attributes
    ----------
    nodes : int
        Number of traced nodes, including nodes that never failed.
    days : int
        Length of the trace.
    outages : tuple of Outage
        Disjoint outages; nodes are numbered by first failure, followed by nodes without a failure.
    faults : int
        Number of fault starts; an outage may have several.
    unended, unstarted : int
        Number of starts without an end, whose nodes stay down until the end of the trace, and of
        ends without a start, which are ignored.
    """

    nodes: int
    days: int
    outages: tuple[Outage, ...]
    faults: int
    unended: int
    unstarted: int

    def map_to(self, nodes: int, *, seed: int) -> list[Outage]:
        """Return the outages of ``nodes`` nodes of another cluster.

        Each node gets the outages of a traced node, drawn without replacement, so that some nodes
        fail often and others never. In a larger cluster every further 400 nodes repeat all traced
        nodes in a new order, with a random cyclic shift in time: copies do not fail together.
        """
        rng = np.random.default_rng(seed)
        by_node: list[list[Outage]] = [[] for _ in range(self.nodes)]
        for outage in self.outages:
            by_node[outage.node].append(outage)
        found: list[Outage] = []
        for first in range(0, nodes, self.nodes):
            shift_s = float(rng.uniform(0, self.days * DAY_S)) if first else 0.0
            drawn = rng.permutation(self.nodes)[: nodes - first]
            for i, traced in enumerate(drawn.tolist()):
                for outage in by_node[traced]:
                    copy = outage._replace(node=first + i)
                    found += _shift(copy, shift_s, self.days * DAY_S)
        return found


def read_text(path: Path) -> str:
    """Read a text file, gzipped or plain.

    Raises
    ------
    TableError
        The file is missing or not text.
    """
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise TableError(f"{path}: is not text, gzipped or plain ({error})") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}); name a fault trace") from None


def parse_fault_trace(text: str) -> FaultTrace:
    """Parse the text of a trace.

    Raises
    ------
    TableError
        The text is not JSON of that format; the message names the event.
    """
    try:
        events = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"is not JSON ({error})") from None
    nodes, length_days, events = _declared(events)
    if not isinstance(events, list) or not events:
        raise TableError("is not a list of fault events")
    days = [_parse_day(event, f"event {i}") for i, event in enumerate(events)]
    if length_days is not None and length_days < max(days):
        raise TableError(f"has an event on day {max(days):g}, and declares days={length_days:g}")
    last_day = math.ceil(max(days) if length_days is None else length_days)
    numbers: dict[str, int] = {}
    open_s: dict[tuple[int, str], list[float]] = {}  # starts by node and kind of fault
    outages: list[Outage] = []
    unstarted = faults = 0
    # Starts before ends of the same moment: some faults have zero length.
    order = sorted(range(len(events)), key=lambda i: (days[i], events[i]["event_type"] != _START))
    for i in order:
        at_s, event = days[i] * DAY_S, events[i]
        node = numbers.setdefault(event["node_id"], len(numbers))
        starts_s = open_s.setdefault((node, json.dumps(event.get("fault_type"))), [])
        if event["event_type"] == _START:
            starts_s.append(at_s)
            faults += 1
        elif starts_s:
            outages.append(Outage(node, starts_s.pop(0), at_s))
        else:
            unstarted += 1
    unended = [(node, from_s) for (node, _), starts_s in open_s.items() for from_s in starts_s]
    outages += [Outage(node, from_s, last_day * DAY_S) for node, from_s in unended]
    if nodes is not None and len(numbers) > nodes:
        raise TableError(f"has faults of {len(numbers)} nodes, and declares nodes={nodes}")
    return FaultTrace(
        nodes or max(NODES, len(numbers)),
        last_day,
        tuple(merge_outages(outages)),
        faults,
        len(unended),
        unstarted,
    )


_START, _END = "fault_start", "fault_end"
_CENTURY = 36_525  # in days: a larger time is probably in seconds


def fault_trace_content(
    outages: Iterable[Outage], names: Sequence[str], length_s: float
) -> dict[str, Any]:
    """Return outages of nodes as the content of a trace; those of their devices count for the node.

    Parameters
    ----------
    names : sequence of str
        Name of each node, including nodes without an outage.
    length_s : float
        Length of the trace. An outage that is not over by then has no end.
    """
    of_nodes = merge_outages(one._replace(device=None) for one in outages)
    events = [_make_event(names[one.node], one.from_s, _START) for one in of_nodes]
    events += [
        _make_event(names[one.node], one.until_s, _END)
        for one in of_nodes
        if one.until_s <= length_s
    ]
    events.sort(key=lambda event: (event["event_time"], event["event_type"] != _START))
    return {"nodes": len(names), "days": length_s / DAY_S, "events": events}


def _make_event(name: str, at_s: float, event_type: str) -> dict[str, Any]:
    day = at_s / DAY_S
    return {"node_id": name, "event_time": day, "event_type": event_type, "fault_type": {}}


def _declared(content: Any) -> tuple[int | None, float | None, Any]:
    """Return the declared number of nodes and length in days, or None, and the events."""
    if not isinstance(content, dict) or "events" not in content:
        return None, None, content
    nodes, days = content.get("nodes"), content.get("days")
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise TableError(f"nodes={nodes!r}, must be an integer >= 1: all nodes, failed or not")
    if days is not None and not _is_day(days):
        raise TableError(f"days={days!r}, must be days, from 0 to {_CENTURY:,}")
    return nodes, days, content["events"]


def _is_day(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _CENTURY


def _parse_day(event: Any, where: str) -> float:
    """Check an event and return its time in days."""
    if not isinstance(event, dict) or not isinstance(event.get("node_id"), str):
        raise TableError(f"{where} has no text node_id; keep the format of InfiniteHBD's trace")
    if event.get("event_type") not in (_START, _END):
        raise TableError(
            f"{where}: event_type={event.get('event_type')!r}, must be {_START} or {_END}"
        )
    day = event.get("event_time")
    if not _is_day(day):
        raise TableError(f"{where}: event_time={day!r}, must be days, from 0 to {_CENTURY:,}")
    return float(day)


def _shift(outage: Outage, shift_s: float, length_s: float) -> list[Outage]:
    """Shift an outage in time, cyclically in the length of the trace."""
    from_s = (outage.from_s + shift_s) % length_s
    until_s = outage.until_s + (from_s - outage.from_s)
    if until_s <= length_s:
        return [outage._replace(from_s=from_s, until_s=until_s)]
    return [
        outage._replace(from_s=from_s, until_s=length_s),
        outage._replace(from_s=0.0, until_s=until_s - length_s),
    ]
