"""The fault trace of InfiniteHBD, and how its nodes become those of another cluster.

JSON: a list of ``{"node_id": ..., "event_time": days, "event_type": "fault_start" | "fault_end",
"fault_type": {...}}``. Upstream: github.com/stepfun-ai/InfiniteHBD-Trace.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.errors import TableError
from presage.schedulers.faults.fault import Outage, merged

DAY_S = 86_400.0
NODES = 400  # of eight GPUs each were traced; the file names those alone that failed


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Outages of the nodes of a traced cluster.

    Attributes
    ----------
    nodes : int
        Traced ones, also those that never failed.
    days : int
        That it lasts.
    outages : tuple of Outage
        Apart from each other; nodes are numbered as they first failed, the other ones after them.
    faults : int
        That began; an outage may have several.
    unended, unstarted : int
        Beginnings without an end, whose nodes are down until the trace's, and ends without a
        beginning, which are left out.
    """

    nodes: int
    days: int
    outages: tuple[Outage, ...]
    faults: int
    unended: int
    unstarted: int

    def onto(self, nodes: int, *, seed: int) -> list[Outage]:
        """What happens to so many nodes of another cluster.

        Each is a traced node, drawn without one twice: nodes that fail often stay so, and others
        never fail. Of a larger cluster, every further 400 nodes are all of them drawn anew, with
        the days turned round by a part that is drawn too, so that copies do not fail together.
        """
        rng = np.random.default_rng(seed)
        of_node: list[list[Outage]] = [[] for _ in range(self.nodes)]
        for one in self.outages:
            of_node[one.node].append(one)
        found: list[Outage] = []
        for first in range(0, nodes, self.nodes):
            shift_s = float(rng.uniform(0, self.days * DAY_S)) if first else 0.0
            drawn = rng.permutation(self.nodes)[: nodes - first]
            for i, traced in enumerate(drawn.tolist()):
                for one in of_node[traced]:
                    found += _turned(one._replace(node=first + i), shift_s, self.days * DAY_S)
        return found


def parse_fault_trace(text: str) -> FaultTrace:
    """A trace of its text.

    Raises
    ------
    TableError
        It is no JSON or not of that layout; names the event.
    """
    try:
        events = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"is no JSON ({error})") from None
    if not isinstance(events, list) or not events:
        raise TableError("is no list of fault events")
    days = [_day(one, f"event {i}") for i, one in enumerate(events)]
    last_day = math.ceil(max(days))
    numbers: dict[str, int] = {}
    open_s: dict[tuple[int, str], list[float]] = {}  # of each node and kind of fault
    outages: list[Outage] = []
    unstarted = faults = 0
    # Beginnings before ends of the same moment: some faults last no time.
    order = sorted(range(len(events)), key=lambda i: (days[i], events[i]["event_type"] != _START))
    for i in order:
        at_s, one = days[i] * DAY_S, events[i]
        node = numbers.setdefault(one["node_id"], len(numbers))
        began_s = open_s.setdefault((node, json.dumps(one.get("fault_type"))), [])
        if one["event_type"] == _START:
            began_s.append(at_s)
            faults += 1
        elif began_s:
            outages.append(Outage(node, began_s.pop(0), at_s))
        else:
            unstarted += 1
    unended = [(node, from_s) for (node, _), left in open_s.items() for from_s in left]
    outages += [Outage(node, from_s, last_day * DAY_S) for node, from_s in unended]
    return FaultTrace(
        max(NODES, len(numbers)), last_day, tuple(merged(outages)), faults, len(unended), unstarted
    )


_START, _END = "fault_start", "fault_end"
_CENTURY = 36_525  # in days: who writes seconds is told so


def _day(event: Any, where: str) -> float:
    """When it happened, once it is seen to be an event."""
    if not isinstance(event, dict) or not isinstance(event.get("node_id"), str):
        raise TableError(f"{where} has no text node_id; keep the layout of InfiniteHBD's trace")
    if event.get("event_type") not in (_START, _END):
        raise TableError(
            f"{where}: event_type={event.get('event_type')!r}, must be {_START} or {_END}"
        )
    day = event.get("event_time")
    if isinstance(day, bool) or not isinstance(day, int | float) or not 0 <= day <= _CENTURY:
        raise TableError(f"{where}: event_time={day!r}, must be days, from 0 to {_CENTURY:,}")
    return float(day)


def _turned(one: Outage, shift_s: float, length_s: float) -> list[Outage]:
    """Later, where what passes the end goes on at the beginning."""
    from_s = (one.from_s + shift_s) % length_s
    until_s = one.until_s + (from_s - one.from_s)
    if until_s <= length_s:
        return [Outage(one.node, from_s, until_s)]
    return [Outage(one.node, from_s, length_s), Outage(one.node, 0.0, until_s - length_s)]
