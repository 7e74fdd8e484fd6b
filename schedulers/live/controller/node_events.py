"""Notifications of nodes that fail and return, for a webhook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from presage.schedulers.live.controller.journal.records import NodeJoined, NodeLost, Record
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.system.notifications.cloud_event import NODE_BACK, NODE_FAILED, CloudEvent


def node_events(state: ReplayedState, records: Iterable[Record]) -> Iterator[CloudEvent]:
    """Yield the events of records that are in the journal, and not applied to the state yet."""
    source = f"/presage/clusters/{state.cluster_id}"
    for record in records:
        if not isinstance(record, NodeJoined | NodeLost):
            continue
        known = state.nodes.get(record.node)
        if isinstance(record, NodeLost):
            jobs = list(state.at_node.get(record.node, ()))
            data = {"node": record.node, "devices": len(known.devices) if known else 0}
            yield CloudEvent(NODE_FAILED, source, record.node, data | {"jobs": jobs})
        elif known is not None and known.lost:
            down_s = round(record.time_s - known.lost_s, 3)
            data = {"node": record.node, "devices": len(record.devices)}
            yield CloudEvent(NODE_BACK, source, record.node, data | {"lost_for_s": down_s})
