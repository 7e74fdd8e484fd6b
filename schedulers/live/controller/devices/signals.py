"""Health signals in the report of an agent: which are new, and what they say about its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from presage.schedulers.health.health_signal import Severity
from presage.schedulers.live.controller.devices.device_health import DeviceHealth
from presage.schedulers.live.controller.journal.records import HealthReported
from presage.schedulers.live.controller.replayed_state import LiveNode, ReplayedState
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_REASON = 200  # characters
SOURCES = frozenset({"xid", "ecc", "rows"})
_SEVERITIES = frozenset(Severity)


def health_record(
    state: ReplayedState, node: LiveNode, report: pb.NodeReport, now_s: float
) -> HealthReported | None:
    """Return the record of the new signals in a report of a node; None if there are none.

    Repeats are left out, as are signals of unknown devices, sources and severities.
    """
    after = node.signals_number if report.signals_id == node.signals_id else 0
    if all(one.number <= after for one in report.signals):
        return None
    health, rows = _copies(state, node), list[list[Any]]()
    for one in report.signals:
        if one.number <= after or not _is_valid(one, len(health)):
            continue
        signal = (one.source, one.severity, _clean(one.reason))
        if not health[one.device].is_repeat(*signal, now_s):
            health[one.device].note(*signal, now_s)
            rows.append([one.device, *signal])
    if not rows:
        return None
    last = max(one.number for one in report.signals)
    return HealthReported(node.name, report.signals_id, last, rows, now_s)


def acknowledged_number(state: ReplayedState, report: pb.NodeReport, now_s: float) -> int:
    """Return the number up to which the signals of a report are recorded or need no record."""
    node = state.nodes[report.node]
    if health_record(state, node, report, now_s) is None:
        return max((one.number for one in report.signals), default=0)
    return node.signals_number if report.signals_id == node.signals_id else 0


def failed_devices(
    state: ReplayedState, node: LiveNode, record: HealthReported | None
) -> dict[int, str]:
    """Return why devices of a node have failed, by number, once a record is applied."""
    health = [state.health_of(device_id) for device_id in node.history_ids]
    if record is not None:
        health = _copies(state, node)
        for device, *signal in record.signals:
            health[device].note(*signal, now_s=0.0)
    return {number: one.withdrawal_reason for number, one in enumerate(health) if one.has_failed}


def excuse_tasks(report: pb.NodeReport, failed: Mapping[int, str]) -> pb.NodeReport:
    """Return a report in which tasks that failed on failed devices are lost by no fault of theirs.

    A process on a device that fails ends with an error a moment later.
    """
    blamed = [task for task in report.tasks if _failed_on(task, failed)]
    if not blamed:
        return report
    excused = pb.NodeReport()
    excused.CopyFrom(report)
    for task in excused.tasks:
        if device := _failed_on(task, failed):
            task.exit.lost = True
            task.exit.description = f"device {device[0]} of its node: {failed[device[0]]}"
    return excused


def _failed_on(task: pb.Task, failed: Mapping[int, str]) -> list[int]:
    """Return the failed devices of a task that ended with an error."""
    end = task.exit
    is_failure = task.phase == pb.TASK_ENDED and not (
        end.finished or end.requested or end.out_of_memory or end.lost
    )
    return [one.device for one in task.allocations if is_failure and one.device in failed]


def _copies(state: ReplayedState, node: LiveNode) -> list[DeviceHealth]:
    """Return copies of the health of a node's devices."""
    return [deepcopy(state.health_of(device_id)) for device_id in node.history_ids]


def _is_valid(signal: pb.HealthSignal, devices: int) -> bool:
    is_known = signal.source in SOURCES and signal.severity in _SEVERITIES
    return is_known and 0 <= signal.device < devices


def _clean(reason: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in reason[:MAX_REASON])
