"""What is said of jobs and nodes: of the book, the mirror, and what agents said last."""

from __future__ import annotations

import math
from collections.abc import Iterable

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.replayed_state import AT_NODE, LiveJob, Stage
from presage.schedulers.live.protocol.wire import read_predictions, write_allocations
from presage.schedulers.policies.sharing.slo import ROUNDED
from presage.schedulers.v1 import cluster_pb2 as pb

_PHASES = {
    Stage.WAITING: pb.WAITING,
    Stage.PLACED: pb.PLACED,
    Stage.RUNNING: pb.RUNNING,
    Stage.LEAVING: pb.LEAVING,
    Stage.FINISHED: pb.FINISHED,
    Stage.FAILED: pb.FAILED,
    Stage.CANCELLED: pb.CANCELLED,
    Stage.REJECTED: pb.REJECTED,
}
# Of a job among others. Users write up to a MiB: a list of many of that fits into no message.
_MOST_COMMAND_BYTES = 1_536
_MOST_FOLDER_BYTES = 256
_MOST_NAME_BYTES = 128
_CUT = "…"


def status_of(
    core: Core, job: LiveJob, now_s: float, place: int = 0, *, whole: bool = False
) -> pb.JobStatus:
    """Of a job; ``place`` is its place in the queue.

    What its user wrote is cut short, and ends with an ellipsis then, unless the ``whole`` of it is
    asked for.
    """
    seen = core.nodes.get(job.node)
    task = seen.tasks.get(job.job_id) if seen is not None and job.stage in AT_NODE else None
    predictions = job.prediction_messages
    waits = job.stage is Stage.WAITING
    status = pb.JobStatus(
        job=_shown(job.message, whole=whole),
        phase=_PHASES[job.stage],
        reason=job.reason,
        attempt=job.starts,
        node=job.node,
        allocations=write_allocations(job.allocations),
        submitted_unix_s=job.submitted_unix_s,
        started_unix_s=job.started_unix_s,
        ended_unix_s=job.ended_unix_s,
        done=1.0 if job.stage is Stage.FINISHED else job.saved,
        predictions=predictions,
        waited_s=job.waited_s + (now_s - job.since_s if waits else 0.0),
        queue_position=place,
    )
    if job.first_start_s is not None:
        status.elapsed_s = (now_s if job.stage in AT_NODE else job.since_s) - job.first_start_s
    if job.stage is Stage.FINISHED and job.message.latency_sensitive:
        status.slo_violated = _was_late(core, job, status)
    if task is not None:
        _add_task(status, task)
        kind = _kind(core, job, status)
        prediction = read_predictions(predictions).get(kind)
        if task.HasField("remaining_s"):
            status.remaining_s = task.remaining_s
        elif prediction is not None:
            status.remaining_s = prediction.remaining_s(task.done, status.elapsed_s)
    return status


def public_part(status: pb.JobStatus) -> pb.JobStatus:
    """Return what others than a job's owner see of it: what it has, not what it is or runs."""
    job = status.job
    shown = pb.JobStatus()
    shown.CopyFrom(status)
    shown.job.CopyFrom(
        pb.Job(
            job_id=job.job_id,
            user=job.user,
            gpus=job.gpus,
            kinds=job.kinds,
            latency_sensitive=job.latency_sensitive,
            priority=job.priority,
        )
    )
    shown.ClearField("reason")  # it may quote the command, or name files
    shown.ClearField("predictions")
    shown.ClearField("remaining_s")  # a forecast, as is a guess of what is done
    if shown.done_estimated:
        shown.ClearField("done")
        shown.ClearField("done_estimated")
    return shown


def _shown(job: pb.Job, *, whole: bool) -> pb.Job:
    """Without what is long, or its user's secret."""
    shown = pb.Job()
    shown.CopyFrom(job)
    shown.ClearField("features")
    shown.ClearField("environment")
    if not whole:
        shown.command[:] = _cut(job.command, _MOST_COMMAND_BYTES)
        shown.kinds[:] = _cut(job.kinds, _MOST_NAME_BYTES)
        shown.folder = "".join(_cut([job.folder], _MOST_FOLDER_BYTES))
        shown.user = "".join(_cut([job.user], _MOST_NAME_BYTES))
        shown.model = "".join(_cut([job.model], _MOST_NAME_BYTES))
    return shown


def _cut(texts: Iterable[str], most_bytes: int) -> list[str]:
    """As much of texts as these bytes hold; the last is an ellipsis where that is not all."""
    found: list[str] = []
    for text in texts:
        content = text.encode()
        if len(content) >= most_bytes:
            begin = content[:most_bytes].decode(errors="ignore")
            return [*found, *([begin] if begin else []), _CUT]
        found.append(text)
        most_bytes -= len(content) + 1  # many empty ones are long, too
    return found


def _add_task(status: pb.JobStatus, task: pb.Task) -> None:
    """What an agent says of a job."""
    if task.phase == pb.TASK_PAUSED and status.phase == pb.RUNNING:
        status.phase = pb.PAUSED
    if task.done > status.done:  # which is what it has saved
        status.done, status.done_estimated = task.done, task.done_estimated
    status.usage_milli = task.usage_milli
    status.memory_bytes, status.peak_memory_bytes = task.memory_bytes, task.peak_memory_bytes
    status.slo_violated = task.slo_violated
    status.reason = task.reason or status.reason
    if task.allocations:
        del status.allocations[:]
        status.allocations.extend(task.allocations)


def _was_late(core: Core, job: LiveJob, status: pb.JobStatus) -> bool:
    """Whether a job that is done took longer than it was promised on its kind of device."""
    predictions = read_predictions(job.prediction_messages)
    here = predictions.get(_kind(core, job, status))
    slos_s = [one.promised_s for one in ([here] if here is not None else predictions.values())]
    return status.elapsed_s > max(slos_s, default=math.inf) * ROUNDED


def _kind(core: Core, job: LiveJob, status: pb.JobStatus) -> str:
    node = core.book.nodes.get(job.node)  # long lost ones are forgotten
    devices = [] if node is None else node.devices
    first = status.allocations[0].device if status.allocations else 0
    return str(devices[first][0]) if first < len(devices) else ""


def node_status(core: Core, name: str, now_s: float, *, whole: bool = True) -> pb.NodeStatus:
    """Of a node: what its jobs have of it, and what is left; ``whole``: its agent's problem too."""
    node, seen = core.book.nodes[name], core.nodes[name]
    devices = [
        pb.DeviceStatus(
            kind=kind, memory_bytes=memory, free_compute_milli=1000, free_memory_bytes=memory
        )
        for kind, memory in node.devices
    ]
    for job in core.book.at_node.get(name, {}).values():
        task = seen.tasks.get(job.job_id)
        rows = (
            [(g.device, g.compute_milli, g.memory_bytes) for g in task.allocations]
            if task is not None
            else [(g[0], g[1], g[2]) for g in job.allocations]
        )
        for device, milli, memory in rows:
            if device < len(devices):
                devices[device].free_compute_milli -= milli
                devices[device].free_memory_bytes -= memory
                devices[device].job_ids.append(job.job_id)
    reason = core.not_up(name, now_s)
    return pb.NodeStatus(
        name=name,
        devices=devices,
        connected=core.is_heard(name, now_s),
        drained=node.drained,
        last_report_age_s=now_s - seen.reported_s,
        reason=reason if whole else reason.partition(":")[0],
    )
