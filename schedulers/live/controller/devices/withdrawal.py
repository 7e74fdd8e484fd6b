"""Withdrawal of single devices: the records by which jobs leave them, and operators' requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from presage.errors import UnknownJobError
from presage.schedulers.live.controller.devices.node_availability import drained_text
from presage.schedulers.live.controller.elastic.members import without_members
from presage.schedulers.live.controller.journal.records import DeviceDrained, Record, Stopping
from presage.schedulers.live.controller.replayed_state import (
    LiveJob,
    LiveNode,
    ReplayedState,
    Stage,
)
from presage.schedulers.v1 import cluster_pb2 as pb


def withdrawn_devices(state: ReplayedState, node: LiveNode) -> dict[int, str]:
    """Return why devices of a node get no jobs, by number."""
    reasons = (state.health_of(one).withdrawal_reason for one in node.history_ids)
    return {number: reason for number, reason in enumerate(reasons) if reason}


def find_device(state: ReplayedState, name: str) -> tuple[LiveNode, int]:
    """Return the node and the number of a device, given as NODE/NUMBER.

    Raises
    ------
    UnknownJobError
        There is no such node or device.
    """
    node_name, slash, number = name.rpartition("/")
    node = state.nodes.get(node_name if slash and number.isdecimal() else name)
    if node is None:
        known = ", ".join(sorted(state.nodes)) or "none"
        raise UnknownJobError(f"there is no node {name!r}; known are: {known}")
    if len(number) > 9 or int(number) >= len(node.devices):
        raise UnknownJobError(
            f"node {node_name!r} has no device {number[:9]}; its devices are 0 to "
            f"{len(node.devices) - 1}"
        )
    return node, int(number)


def drain_device(
    state: ReplayedState,
    name: str,
    tasks: Mapping[str, pb.Task],
    *,
    undo: bool,
    now_s: float,
    by: str = "",
    reason: str = "",
) -> list[Record]:
    """Return the records that withdraw a device by request, or return it to service.

    Parameters
    ----------
    name : str
        Device, as NODE/NUMBER.
    tasks : mapping of str to Task
        Tasks that its node reported last.
    by, reason : str
        Operator that withdraws it, and why.
    """
    node, device = find_device(state, name)
    health = state.health_of(node.history_ids[device])
    if undo:
        is_withdrawn = bool(health.withdrawal_reason)
        return [DeviceDrained(node.name, device, False, now_s)] if is_withdrawn else []
    records: list[Record] = []
    if not health.drained or (reason and reason != health.drain_reason):
        records.append(DeviceDrained(node.name, device, True, now_s, by, reason))
    jobs = state.at_node.get(node.name, {}).values()
    withdrawn = {device: drained_text(by, reason)}
    return records + list(leave_devices(jobs, node.name, withdrawn, tasks, now_s))


def leave_devices(
    jobs: Iterable[LiveJob],
    node: str,
    withdrawn: Mapping[int, str],
    tasks: Mapping[str, pb.Task | None],
    now_s: float,
) -> Iterator[Record]:
    """Yield the records by which jobs leave withdrawn devices of a node.

    An elastic job continues with its other workers if they are enough for it.
    """
    for job in jobs if withdrawn else ():
        if job.stage is Stage.LEAVING:
            continue
        hit = devices_of(job, node, tasks.get(job.job_id)) & withdrawn.keys()
        if not hit:
            continue
        device = min(hit)
        reason = f"device {node}/{device} is withdrawn: {withdrawn[device]}"
        if job.members:
            gone = [one for one in job.members if one.node == node and one.device in hit]
            yield without_members(job, gone, reason, now_s)
        else:
            yield Stopping(job.job_id, job.attempt, reason, False, now_s)


def devices_of(job: LiveJob, node: str, task: pb.Task | None) -> set[int]:
    """Return the devices of a node that a job has: as its agent reports them, else as planned."""
    if job.members or job.leaving:
        return {member.device for member in job.members if member.node == node}
    if task is not None and task.allocations:
        return {one.device for one in task.allocations}
    return {allocation[0] for allocation in job.allocations}
