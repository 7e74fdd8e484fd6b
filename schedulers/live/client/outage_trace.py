"""Outages of a live cluster as a fault trace, for the fit of a hazard model."""

from __future__ import annotations

import math
from typing import Any

from presage.features.hazard.fault_trace import fault_trace_content
from presage.features.hazard.outage import Outage
from presage.schedulers.v1 import cluster_pb2 as pb


def fault_trace(found: pb.OutagesResponse) -> dict[str, Any]:
    """Return the outages of nodes, as :func:`presage.features.hazard.fault_trace` reads them.

    A node is down while at least one of its devices is. The history of a device counts for the node
    that has it now. A device whose node was removed counts for that node, or, if it has an id of
    its own, as a node of that name.
    """
    numbers = {name: number for number, name in enumerate(found.nodes)}
    outages = [
        Outage(numbers.setdefault(_node_of(row), len(numbers)), one.from_s, _until_s(one))
        for row in found.devices
        for one in row.outages
    ]
    return fault_trace_content(outages, list(numbers), found.now_s)


def down_s(row: pb.DeviceOutages, now_s: float) -> float:
    """Return the time for which a device was down, until now."""
    return sum(min(_until_s(one), now_s) - one.from_s for one in row.outages)


def _node_of(row: pb.DeviceOutages) -> str:
    return row.node or row.device_id.rpartition("/")[0] or row.device_id


def _until_s(outage: pb.Outage) -> float:
    return outage.until_s if outage.HasField("until_s") else math.inf
