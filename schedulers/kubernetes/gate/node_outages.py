"""Outages of the devices of a Kubernetes cluster, from the conditions and taints of its nodes.

The gate keeps them in memory. After a restart it knows from the API what nodes say at present:
since when a node is unhealthy, or when it became ready again, which is its last outage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.health.health_signal import Severity
from presage.schedulers.health.node_conditions import ready_since, timed_node_signals
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.gate.annotations import parse_time_or_none
from presage.schedulers.kubernetes.snapshot import Json

EARLIER_S = 30 * 86_400.0  # time before the first pass from which last outages are used
JOINED_S = 600.0  # a node that becomes ready later after its creation was down before
MOST_EVENTS = 200_000  # of a history; the older half is then dropped


class NodeOutages:
    """History of outages, updated in each pass.

    An outage is a device with a signal that is degraded or failed: of its own, if the signal has
    the number of the device, or of its whole node. Nodes are recognized by their system UUID, so
    that the history follows a machine to another name; without one, by their name.

    Attributes
    ----------
    history : OutageHistory
        In seconds since 1970.
    device_ids : tuple of str
        Id of each device of the fleet in the history; the same object while the fleet is the same.
    """

    def __init__(self) -> None:
        self.history = OutageHistory()
        self.device_ids: tuple[str, ...] = ()
        self._known: set[str] = set()  # machines of earlier passes
        self._is_begun = False

    def update(self, fleet: Fleet, now_s: float) -> None:
        """Record what has begun and ended until now."""
        if not self._is_begun:
            self._is_begun = True
            self.history = OutageHistory(_begin_s(fleet.nodes.values(), now_s))
        machines = _machines(fleet.nodes)
        ids: list[str] = []
        for node in fleet.cluster.nodes:
            devices = [f"{machines[node.name]}/{number}" for number in range(node.devices)]
            self._update_node(machines[node.name], fleet.nodes[node.name], devices, now_s)
            ids += devices
        self._end_missing(set(ids), now_s)
        if tuple(ids) != self.device_ids:
            self.device_ids = tuple(ids)
        if len(self.history.events) > MOST_EVENTS:
            self._drop_older_half()

    def _update_node(self, machine: str, node: Json, devices: list[str], now_s: float) -> None:
        began_s = {
            devices[number]: self._within(since, now_s)
            for number, since in _unhealthy(node, len(devices)).items()
        }
        ready_s = self._within(ready_since(node), now_s)
        if machine not in self._known:
            self._known.add(machine)
            if self._was_down(node):
                self._record(devices, ready_s, ready_s)
        for device in devices:
            if device in began_s:
                self.history.record_failure(device, began_s[device])
            elif self.history.is_down(device):
                start_s = self.history.outages[device][-1].from_s
                self.history.record_repair(device, ready_s if ready_s > start_s else now_s)

    def _was_down(self, node: Json) -> bool:
        """Return whether a node became ready again within the history, and not just joined."""
        created_s = parse_time_or_none(str(node["metadata"].get("creationTimestamp") or ""))
        at_s = parse_time_or_none(ready_since(node))
        if created_s is None or at_s is None:
            return False
        return at_s >= max(self.history.observed_from_s, created_s + JOINED_S)

    def _record(self, devices: Iterable[str], start_s: float, end_s: float) -> None:
        for device in devices:
            self.history.record_failure(device, start_s)
            self.history.record_repair(device, end_s)

    def _within(self, text: str, now_s: float) -> float:
        """Return a time within the history; the present if the API does not have it."""
        at_s = parse_time_or_none(text)
        return now_s if at_s is None else min(max(at_s, self.history.observed_from_s), now_s)

    def _end_missing(self, present: Collection[str], now_s: float) -> None:
        """End the outages of devices that have left the cluster."""
        for device in self.history.outages.keys() - present:
            self.history.record_repair(device, now_s)

    def _drop_older_half(self) -> None:
        events = self.history.events[len(self.history.events) // 2 :]
        self.history = OutageHistory(min(event.at_s for event in events))
        for event in events:
            record = self.history.record_repair if event.is_repair else self.history.record_failure
            record(event.device_id, event.at_s)


def _begin_s(nodes: Iterable[Json], now_s: float) -> float:
    """Return the begin of the history: the creation of the oldest node, at most EARLIER_S ago."""
    created_s = [
        at_s
        for node in nodes
        if (at_s := parse_time_or_none(str(node["metadata"].get("creationTimestamp") or "")))
    ]
    return min(now_s, max(now_s - EARLIER_S, min(created_s, default=now_s)))


def _machines(nodes: Mapping[str, Json]) -> dict[str, str]:
    """Return the system UUID of each node, or its name if the UUID is missing or not unique."""
    uuids = {
        name: str(((node.get("status") or {}).get("nodeInfo") or {}).get("systemUUID") or "")
        for name, node in nodes.items()
    }
    counts = Counter(uuids.values())
    return {name: uuid if uuid and counts[uuid] == 1 else name for name, uuid in uuids.items()}


def _unhealthy(node: Json, devices: int) -> dict[int, str]:
    """Return the numbers of the unhealthy devices of a node, each with its earliest begin."""
    found: dict[int, str] = {}
    for signal, since in timed_node_signals(node):
        if signal.severity is Severity.NOTICE:
            continue
        number = signal.device.removeprefix("#")
        if signal.device.startswith("#") and int(number) < devices:
            numbers: Iterable[int] = (int(number),)
        else:  # by a UUID or an address, which the API relates to no number
            numbers = range(devices)
        for one in numbers:
            known = found.get(one)
            found[one] = since if known is None or not known else min(known, since or known)
    return found
