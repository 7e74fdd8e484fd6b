"""Status messages of jobs and nodes, from the replayed state and the agents' last reports."""

from __future__ import annotations

import math
from collections.abc import Iterable

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.health.device_reading import reported as reported_reading
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.devices.withdrawal import withdrawn_devices
from presage.schedulers.live.controller.elastic.members import task_id
from presage.schedulers.live.controller.replayed_state import AT_NODE, ENDED, LiveJob, Stage
from presage.schedulers.live.protocol.wire import read_predictions, write_allocations
from presage.schedulers.policies.sharing.slo import ROUNDED
from presage.schedulers.v1 import cluster_pb2 as pb

_PHASES: dict[Stage, pb.Phase] = {
    Stage.WAITING: pb.WAITING,
    Stage.PLACED: pb.PLACED,
    Stage.RUNNING: pb.RUNNING,
    Stage.LEAVING: pb.LEAVING,
    Stage.FINISHED: pb.FINISHED,
    Stage.FAILED: pb.FAILED,
    Stage.CANCELLED: pb.CANCELLED,
    Stage.REJECTED: pb.REJECTED,
    Stage.TIMED_OUT: pb.TIMED_OUT,
}
# Limits of user texts in lists: a job has up to 1 MiB, and a list must fit in a message.
_MAX_COMMAND_BYTES = 1_536
_MAX_FOLDER_BYTES = 256
_MAX_NAME_BYTES = 128
_ELLIPSIS = "…"


def job_phase(core: Core, job: LiveJob) -> pb.Phase:
    """Return the phase of a job."""
    node = core.nodes.get(job.node)
    if job.stage is Stage.RUNNING and node is not None:
        task = node.tasks.get(job.job_id)
        if task is not None and task.phase == pb.TASK_PAUSED:
            return pb.PAUSED
    return _PHASES[job.stage]


def job_status(
    core: Core, job: LiveJob, now_s: float, position: int = 0, *, full: bool = False
) -> pb.JobStatus:
    """Return the status of a job.

    Parameters
    ----------
    position : int
        Position in the queue, from 1; 0 if it is not in the queue.
    full : bool
        Whether to return long user texts in full; else they are truncated with an ellipsis.
    """
    node = core.nodes.get(job.node)
    task = node.tasks.get(job.job_id) if node is not None and job.stage in AT_NODE else None
    predictions = job.prediction_messages
    is_waiting = job.stage is Stage.WAITING
    status = pb.JobStatus(
        job=_displayed_job(job.message, full=full),
        phase=job_phase(core, job),
        reason=(_closed_reason(core, job) if is_waiting else "") or job.reason,
        attempt=job.starts,
        node=job.node,
        allocations=write_allocations(job.allocations),
        submitted_unix_s=job.submitted_unix_s,
        started_unix_s=job.started_unix_s,
        ended_unix_s=job.ended_unix_s,
        done=1.0 if job.stage is Stage.FINISHED else job.saved,
        predictions=predictions,
        waited_s=job.waited_s + (now_s - job.since_s if is_waiting else 0.0),
        queue_position=position,
        held=job.held and job.stage not in ENDED,
    )
    if job.first_start_s is not None:
        status.elapsed_s = (now_s if job.stage in AT_NODE else job.since_s) - job.first_start_s
    if job.stage is Stage.FINISHED and job.message.latency_sensitive:
        status.slo_violated = _has_violated_slo(core, job, status)
    if job.is_elastic:
        _add_members(status, core, job, now_s, full=full)
    if task is not None:
        _add_task(status, task)
        prediction = read_predictions(predictions).get(_kind(core, job, status))
        status.remaining_s = _remaining_s(job, task, prediction, status.elapsed_s)
    return status


def _closed_reason(core: Core, job: LiveJob) -> str:
    """Return why a waiting job is not in the queue; "" if it is."""
    view = core.current_view
    quota = "" if view is None else view.quota_reason(job.job_id)
    return core.state.gates.closed_reason(job) or quota


def _remaining_s(
    job: LiveJob, task: pb.Task, prediction: RuntimePrediction | None, elapsed_s: float
) -> float:
    """Return the rest of a job's run time: by its agent, by forecast, or by its own progress."""
    if task.HasField("remaining_s") and math.isfinite(task.remaining_s):
        return task.remaining_s
    predicted_s = 0.0 if prediction is None else prediction.remaining_s(task.done, elapsed_s)
    gained = task.done - job.saved
    if math.isinf(predicted_s) and not task.done_estimated and gained > 0:
        return task.ran_s * (1.0 - task.done) / gained
    return predicted_s


def _add_members(
    status: pb.JobStatus, core: Core, job: LiveJob, now_s: float, *, full: bool
) -> None:
    """Add the workers of an elastic job, what they use, and its progress."""
    for member, state in core.elastic.member_states(job):
        (allocation,) = write_allocations([member.allocation])
        status.members.add(name=member.name, node=member.node, allocation=allocation, state=state)
        task = core.task_at(member.node, task_id(job, member))
        if task is not None:
            status.usage_milli += task.usage_milli
            status.memory_bytes += task.memory_bytes
            status.peak_memory_bytes += task.peak_memory_bytes
            status.slo_violated |= task.slo_violated
    for time_s, gpus, reason in job.sizes if full else ():
        time_unix_s = job.submitted_unix_s + time_s - job.submit_s
        status.sizes.add(time_unix_s=time_unix_s, gpus=gpus, reason=reason)
    report = core.elastic.report_of(job)
    if report is not None:
        status.done = max(status.done, report.done)
        if report.per_s > 0:
            status.remaining_s = (1.0 - report.done) / report.per_s


def redact_status(status: pb.JobStatus) -> pb.JobStatus:
    """Return the part of a status that other users may see: allocations, not what it runs."""
    job = status.job
    public = pb.JobStatus()
    public.CopyFrom(status)
    public.job.CopyFrom(
        pb.Job(
            job_id=job.job_id,
            user=job.user,
            gpus=job.gpus,
            min_gpus=job.min_gpus,
            max_gpus=job.max_gpus,
            kinds=job.kinds,
            latency_sensitive=job.latency_sensitive,
            priority=job.priority,
        )
    )
    public.ClearField("reason")  # may quote the command, or name files
    for change in public.sizes:
        change.ClearField("reason")
    public.ClearField("predictions")
    public.ClearField("remaining_s")  # a forecast, like estimated progress
    if public.done_estimated:
        public.ClearField("done")
        public.ClearField("done_estimated")
    return public


def _displayed_job(job: pb.Job, *, full: bool) -> pb.Job:
    """Return a job without features and secrets, and with truncated texts unless ``full``."""
    shown = pb.Job()
    shown.CopyFrom(job)
    shown.ClearField("features")
    shown.ClearField("environment")
    if not full:
        shown.command[:] = _truncate(job.command, _MAX_COMMAND_BYTES)
        shown.kinds[:] = _truncate(job.kinds, _MAX_NAME_BYTES)
        shown.after[:] = _truncate(job.after, _MAX_COMMAND_BYTES)
        shown.after_any[:] = _truncate(job.after_any, _MAX_COMMAND_BYTES)
        shown.folder = "".join(_truncate([job.folder], _MAX_FOLDER_BYTES))
        shown.user = "".join(_truncate([job.user], _MAX_NAME_BYTES))
        shown.model = "".join(_truncate([job.model], _MAX_NAME_BYTES))
    return shown


def _truncate(texts: Iterable[str], max_bytes: int) -> list[str]:
    """Return texts up to a total size; the last one is an ellipsis if they were truncated."""
    found: list[str] = []
    for text in texts:
        content = text.encode()
        if len(content) >= max_bytes:
            begin = content[:max_bytes].decode(errors="ignore")
            return [*found, *([begin] if begin else []), _ELLIPSIS]
        found.append(text)
        max_bytes -= len(content) + 1  # so that many empty texts count as well
    return found


def _add_task(status: pb.JobStatus, task: pb.Task) -> None:
    """Add the agent's report of a task to the status of its job."""
    if task.done > status.done:  # so far, the fraction in its last checkpoint
        status.done, status.done_estimated = task.done, task.done_estimated
    status.usage_milli = task.usage_milli
    status.memory_bytes, status.peak_memory_bytes = task.memory_bytes, task.peak_memory_bytes
    status.slo_violated = task.slo_violated
    status.reason = task.reason or status.reason
    if task.allocations:
        del status.allocations[:]
        status.allocations.extend(task.allocations)


def _has_violated_slo(core: Core, job: LiveJob, status: pb.JobStatus) -> bool:
    """Return whether a finished job exceeded its SLO on its kind of device."""
    predictions = read_predictions(job.prediction_messages)
    prediction = predictions.get(_kind(core, job, status))
    relevant = predictions.values() if prediction is None else [prediction]
    slos_s = [one.slo_s for one in relevant]
    return status.elapsed_s > max(slos_s, default=math.inf) * ROUNDED


def _kind(core: Core, job: LiveJob, status: pb.JobStatus) -> str:
    node = core.state.nodes.get(job.node)  # missing if it was lost long ago
    devices = [] if node is None else node.devices
    first = status.allocations[0].device if status.allocations else 0
    return str(devices[first][0]) if first < len(devices) else ""


def node_status(core: Core, name: str, now_s: float, *, full: bool = True) -> pb.NodeStatus:
    """Return the status of a node; with ``full`` reasons contain what its agent reports."""
    node, reported = core.state.nodes[name], core.nodes[name]
    withdrawn = withdrawn_devices(core.state, node)
    devices = [
        pb.DeviceStatus(
            kind=kind,
            memory_bytes=memory,
            free_compute_milli=1000,
            free_memory_bytes=memory,
            reason=_reason(withdrawn.get(number, ""), full=full),
        )
        for number, (kind, memory) in enumerate(node.devices)
    ]
    if reported.report is not None and not node.lost:
        for status, one in zip(devices, reported.report.devices, strict=False):
            status.MergeFrom(pb.DeviceStatus(**reported_reading(one)._asdict()))
    for job in core.state.at_node.get(name, {}).values():
        for device, milli, memory in _allocations_at(job, name, reported.tasks.get(job.job_id)):
            if device < len(devices):
                devices[device].free_compute_milli -= milli
                devices[device].free_memory_bytes -= memory
                devices[device].job_ids.append(job.job_id)
    state, reason = core.availability(name, now_s)
    return pb.NodeStatus(
        name=name,
        devices=devices,
        connected=core.is_connected(name, now_s),
        drained=node.drained,
        last_report_age_s=now_s - reported.reported_s,
        reason=_reason(reason, full=full),
        state=state,
    )


def _reason(text: str, *, full: bool) -> str:
    """Return why a node or device gets no jobs, without the details unless ``full``."""
    return text if full else text.partition(":")[0]


def _allocations_at(job: LiveJob, node: str, task: pb.Task | None) -> list[tuple[int, int, int]]:
    """Return what a job has of the devices of a node: device, thousandths, bytes."""
    if job.members or job.leaving:
        # Devices that workers leave may be another job's already.
        here = [member.allocation for member in job.members if member.node == node]
        return [(device, milli, memory) for device, milli, memory in here]
    if task is not None:
        return [(one.device, one.compute_milli, one.memory_bytes) for one in task.allocations]
    return [(device, milli, memory) for device, milli, memory in job.allocations]
