"""Table of nodes and their devices."""

from __future__ import annotations

from collections.abc import Sequence

from presage.cli.scheduling.cluster.tables import compact_table
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import Name, Names, Table
from presage.system.text.units import counted, quantity


def node_table(nodes: Sequence[pb.NodeStatus], *, is_wide: bool = False) -> Table:
    """Return a row per device; the first one of a node has the node's state and reason.

    A wide table has temperature and power, too.
    """
    table = compact_table(counted(len(nodes), "node"))
    more = ("temperature", "power") if is_wide else ()
    for column in (
        "node", "state", "device", "kind", "free compute", "free memory", *more, "jobs", "reason",
    ):  # fmt: skip
        right = column in ("device", "free compute", "free memory", *more)
        table.add_column(column, justify="right" if right else "left")
    for node in nodes:
        for number, device in enumerate(node.devices):
            is_first = number == 0
            table.add_row(
                Name(node.name if is_first else ""),
                state_of(node) if is_first else ("withdrawn" if device.reason else ""),
                str(number),
                device.kind,
                f"{device.free_compute_milli / 10:g} %",
                quantity(device.free_memory_bytes, "bytes"),
                *(reading_texts(device) if is_wide else ()),
                Names(device.job_ids),
                _reason(node, number),
            )
    return table


def reading_texts(device: pb.DeviceStatus) -> tuple[str, str]:
    """Return the temperature and the power of a device; "-" if it does not report them."""
    return (
        f"{device.temperature_c:.0f} °C" if device.HasField("temperature_c") else "-",
        f"{device.power_w:.0f} W" if device.HasField("power_w") else "-",
    )


def state_of(node: pb.NodeStatus) -> str:
    """Return the state of a node, also of a controller that does not report it."""
    return node.state or ("unavailable" if node.reason else "ready")


def _reason(node: pb.NodeStatus, number: int) -> str:
    """Return why a device gets no jobs; "" if it does."""
    of_device = node.devices[number].reason
    named = f"device {number}: {of_device}" if of_device else ""
    return "; ".join(filter(None, ("" if number else node.reason, named)))
