"""Observation of a task from its folder, its processes and what they use."""

from __future__ import annotations

import signal

from presage.schedulers.live.agent.connection.lease import boot_id, boottime_s
from presage.schedulers.live.agent.isolation.task_usage import Meter
from presage.schedulers.live.agent.node_task import Observation
from presage.schedulers.live.agent.tasks.task import (
    ENDED,
    LEASE_OVER,
    NO_START,
    OUT_OF_MEMORY,
    TERMINATED,
    TaskExit,
)
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import Task, TaskState, task_state
from presage.schedulers.live.job_progress import Report
from presage.schedulers.v1 import cluster_pb2 as pb

# Environment variable of workers of elastic jobs, and exit status of one that left its job; as in
# presage.training.job_folder.
WORKER_VARIABLE, LEFT = "PRESAGE_ELASTIC_WORKER", 75

# Ends that are no fault of the job.
_LOST = {
    LEASE_OVER: "its node's lease was over",
    TERMINATED: "its node was shut down",
}


def observe(task: Task, meter: Meter, previous: Observation | None) -> Observation | None:
    """Return the current state of a task; None if its process was never started."""
    state, folder = task_state(task.folder), task.folder
    if state is TaskState.NEW:
        return None
    report = folder.progress()
    done = report.done / report.iterations if report else None
    saved = max(
        report.saved / report.iterations if report else 0.0, previous.saved if previous else 0.0
    )
    peak = previous.peak_memory_bytes if previous else 0
    if state is TaskState.RUNNING:
        used = meter.read()
        now_bytes = used.memory_bytes or 0
        ran_s = _ran_s(folder, boottime_s())
        return Observation(ran_s, done, saved, used.compute_milli, now_bytes, max(peak, now_bytes))
    ended = folder.exit() if state is TaskState.ENDED else None
    if ended is None:
        ran_s = previous.ran_s if previous else 0.0
        lost = pb.Exit(lost=True, description="its shim died")
        return Observation(ran_s, done, saved, None, 0, peak, lost)
    ran_s = _ran_s(folder, ended.ended_boottime_s)
    if task.spec.cuda is None:  # the peak of a GPU task would be that of the host's memory
        peak = max(peak, ended.peak_memory_bytes)
    is_elastic = WORKER_VARIABLE in task.spec.environment
    return Observation(ran_s, done, saved, None, 0, peak, make_exit(ended, report, is_elastic))


def make_exit(ended: TaskExit, report: Report | None, is_elastic: bool = False) -> pb.Exit:
    """Return the exit of a task, as it is reported to the controller.

    A task that completed its iterations while it was being ended has finished.

    Parameters
    ----------
    is_elastic : bool
        Whether the task is a worker of an elastic job. It may leave the job on request of its
        leader or on a signal, with exit status 75, although the agent did not request that.
    """
    complete = report is not None and report.done >= report.iterations
    finished = ended.code == 0 and (not ended.reason or complete)
    how = _how(ended)
    if is_elastic and not ended.reason and ended.code == LEFT:
        return pb.Exit(requested=True, description="it left its elastic job")
    if finished:
        return pb.Exit(finished=True, description=how)
    # By the limit of its control group, or by its own report; not if it was already being ended.
    reported_oom = report is not None and report.out_of_memory
    return pb.Exit(
        out_of_memory=ended.reason == OUT_OF_MEMORY or (not ended.reason and reported_oom),
        requested=ended.reason == ENDED,
        lost=ended.reason in _LOST,
        description=_LOST.get(ended.reason, how),
    )


def _how(ended: TaskExit) -> str:
    if ended.reason.startswith(NO_START):
        return ended.reason
    if ended.signal is not None:
        try:
            return f"killed by {signal.Signals(ended.signal).name}"
        except ValueError:
            return f"killed by signal {ended.signal}"
    return f"ended with status {ended.code}"


def _ran_s(folder: TaskFolder, until_s: float) -> float:
    shim = folder.shim_state()
    if shim is None or shim.boot_id != boot_id():
        return 0.0
    return max(1e-3, until_s - shim.started_boottime_s)
