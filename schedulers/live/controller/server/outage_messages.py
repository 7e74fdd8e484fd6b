"""Messages with the outages of a live cluster's devices."""

from __future__ import annotations

from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.v1 import cluster_pb2 as pb


def outages_response(state: ReplayedState, now_s: float) -> pb.OutagesResponse:
    """Return the outages of all devices that had one, with the node that has the device."""
    lost_first = sorted(state.nodes.values(), key=lambda node: not node.lost)
    node_of = {device_id: node.name for node in lost_first for device_id in node.history_ids}
    return pb.OutagesResponse(
        now_s=now_s,
        nodes=list(state.nodes),
        devices=[
            pb.DeviceOutages(
                device_id=device_id,
                node=node_of.get(device_id, ""),
                outages=[pb.Outage(from_s=from_s, until_s=until_s) for from_s, until_s in spans],
            )
            for device_id, spans in state.outages.spans.items()
        ],
    )
