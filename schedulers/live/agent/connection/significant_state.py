"""Part of a node's state that its agent reports at once when it changes."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.health.device_reading import has_moved, reported
from presage.schedulers.v1 import cluster_pb2 as pb


def significant_report(report: pb.NodeReport) -> pb.NodeReport:
    """Return the part of a report that is reported at once when it changes."""
    _, tasks = significant_state(report.commands_version, report.tasks)
    other = pb.NodeReport()
    other.CopyFrom(report)
    other.ClearField("number")
    for device in other.devices:
        device.ClearField("temperature_c")
        device.ClearField("power_w")
    del other.tasks[:]
    other.tasks.extend(tasks)
    return other


def have_readings_moved(before: Sequence[pb.Device], now: Sequence[pb.Device]) -> bool:
    """Return whether a temperature or the power of a device has changed considerably."""
    return len(before) != len(now) or any(
        has_moved(reported(one), reported(other)) for one, other in zip(before, now, strict=True)
    )


def significant_state(version: int, tasks: Sequence[pb.Task]) -> tuple[int, list[pb.Task]]:
    """Return what is reported at once when it changes: all but the progress and use of tasks."""
    rows = []
    for task in tasks:
        row = pb.Task()
        row.CopyFrom(task)
        row.ran_s = float(task.ran_s > 0)  # whether it has started
        for name in ("done", "remaining_s", "usage_milli", "memory_bytes", "peak_memory_bytes"):
            row.ClearField(name)
        rows.append(row)
    return version, rows
