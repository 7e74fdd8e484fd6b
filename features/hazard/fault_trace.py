"""Fault trace of InfiniteHBD, and the mapping of its nodes to those of another cluster.

JSON: a list of ``{"node_id": ..., "event_time": days, "event_type": "fault_start" | "fault_end",
"fault_type": {...}}``. Upstream: github.com/stepfun-ai/InfiniteHBD-Trace. The trace of another
cluster declares its number of nodes: ``{"nodes": 64, "events": [...]}``.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    nodes, events = _declared_nodes(events)
    if not isinstance(events, list) or not events:
        raise TableError("is not a list of fault events")
    days = [_parse_day(event, f"event {i}") for i, event in enumerate(events)]
    last_day = math.ceil(max(days))
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


def _declared_nodes(content: Any) -> tuple[int | None, Any]:
    """Return the declared number of nodes, or None, and the events."""
    if not isinstance(content, dict) or "events" not in content:
        return None, content
    nodes = content.get("nodes")
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise TableError(f"nodes={nodes!r}, must be an integer >= 1: all nodes, failed or not")
    return nodes, content["events"]


_START, _END = "fault_start", "fault_end"
_CENTURY = 36_525  # in days: a larger time is probably in seconds


def _parse_day(event: Any, where: str) -> float:
    """Check an event and return its time in days."""
    if not isinstance(event, dict) or not isinstance(event.get("node_id"), str):
        raise TableError(f"{where} has no text node_id; keep the format of InfiniteHBD's trace")
    if event.get("event_type") not in (_START, _END):
        raise TableError(
            f"{where}: event_type={event.get('event_type')!r}, must be {_START} or {_END}"
        )
    day = event.get("event_time")
    if isinstance(day, bool) or not isinstance(day, int | float) or not 0 <= day <= _CENTURY:
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
