"""Checks of faults against a cluster, and the outage history that a simulation starts with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from presage.errors import ConfigError
from presage.features.hazard.outage import Outage
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.faults.fault import Fault


def check_units(faults: Sequence[Fault] | Iterable[Outage], cluster: Cluster) -> None:
    """Raise ConfigError if a fault or outage is of an unknown node, or of a device elsewhere."""
    for fault in faults:
        if not 0 <= fault.node < len(cluster.nodes):
            raise ConfigError(
                f"a fault of node {fault.node}, and the cluster has {len(cluster.nodes)} nodes; "
                "use faults of this cluster"
            )
        if fault.device is not None and fault.device not in cluster.devices_of(fault.node):
            raise ConfigError(
                f"a fault of device {fault.device}, which is not on node "
                f"{cluster.nodes[fault.node].name!r}; use faults of this cluster"
            )


def make_history(outages: Iterable[Outage], cluster: Cluster) -> OutageHistory:
    """Return the history of outages that were over before 0 s.

    It begins with the first of them.

    Raises
    ------
    ConfigError
        An outage is of an unknown node or device, or is not over.
    """
    found = sorted(outages, key=lambda one: (one.from_s, one.unit))
    check_units(found, cluster)
    history = OutageHistory(min((one.from_s for one in found), default=0.0))
    events: list[tuple[float, bool, int]] = []
    for one in found:
        if not -math.inf < one.from_s <= one.until_s <= 0:
            raise ConfigError(
                f"an earlier outage of node {one.node} from {one.from_s} to {one.until_s} s, must "
                "be over at 0 s"
            )
        devices = cluster.devices_of(one.node) if one.device is None else (one.device,)
        events += [(one.from_s, False, device) for device in devices]
        events += [(one.until_s, True, device) for device in devices]
    depth = dict.fromkeys((device for _, _, device in events), 0)
    for at_s, is_repair, device in sorted(events):
        depth[device] += -1 if is_repair else 1
        if not is_repair:
            history.record_failure(cluster.name_of(device), at_s)
        elif not depth[device]:
            history.record_repair(cluster.name_of(device), at_s)
    return history
