"""What an agent sees of a task: its folder, its processes, what they use."""

from __future__ import annotations

import signal

from presage.schedulers.live.agent.isolation.task_usage import Meter
from presage.schedulers.live.agent.lease import boot_id, boottime_s
from presage.schedulers.live.agent.node_task import Seen
from presage.schedulers.live.agent.tasks.task import (
    ENDED,
    LEASE_OVER,
    NO_START,
    OUT_OF_MEMORY,
    TERMINATED,
    TaskExit,
)
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import Task, TaskState, state_of
from presage.schedulers.live.job_progress import Report
from presage.schedulers.v1 import cluster_pb2 as pb

# Through no fault of the job's: its node's lease was over, the machine shut down.
_LOST = {
    LEASE_OVER: "its node's lease was over",
    TERMINATED: "its node was shut down",
}


def observe(task: Task, meter: Meter, before: Seen | None) -> Seen | None:
    """What there is of a task now; None of one whose process was never started."""
    state, folder = state_of(task.folder), task.folder
    if state is TaskState.NEW:
        return None
    told = folder.progress()
    done = told.done / told.iterations if told else None
    saved = max(told.saved / told.iterations if told else 0.0, before.saved if before else 0.0)
    peak = before.peak_memory_bytes if before else 0
    if state is TaskState.RUNNING:
        used = meter.read()
        now_bytes = used.memory_bytes or 0
        ran_s = _ran_s(folder, boottime_s())
        return Seen(ran_s, done, saved, used.compute_milli, now_bytes, max(peak, now_bytes))
    ended = folder.exit() if state is TaskState.ENDED else None
    if ended is None:
        ran_s = before.ran_s if before else 0.0
        return Seen(ran_s, done, saved, None, 0, peak, pb.Exit(lost=True, how="its shim died"))
    ran_s = _ran_s(folder, ended.ended_boottime_s)
    if task.spec.cuda is None:  # else it would be the host's
        peak = max(peak, ended.peak_memory_bytes)
    return Seen(ran_s, done, saved, None, 0, peak, exit_of(ended, told))


def exit_of(ended: TaskExit, told: Report | None) -> pb.Exit:
    """How a task ended, as the controller is told.

    One that was to end and came to its end just then has finished.
    """
    complete = told is not None and told.done >= told.iterations
    finished = ended.code == 0 and (not ended.why or complete)
    how = _how(ended)
    if finished:
        return pb.Exit(finished=True, how=how)
    # By its group's limit, or by its own word; not if it was already to end.
    full = ended.why == OUT_OF_MEMORY or (not ended.why and told is not None and told.out_of_memory)
    return pb.Exit(
        out_of_memory=full,
        asked=ended.why == ENDED,
        lost=ended.why in _LOST,
        how=_LOST.get(ended.why, how),
    )


def _how(ended: TaskExit) -> str:
    if ended.why.startswith(NO_START):
        return ended.why
    if ended.signal is not None:
        try:
            return f"killed by {signal.Signals(ended.signal).name}"
        except ValueError:
            return f"killed by signal {ended.signal}"
    return f"ended with status {ended.code}"


def _ran_s(folder: TaskFolder, until_s: float) -> float:
    began = folder.shim_state()
    if began is None or began.boot_id != boot_id():
        return 0.0
    return max(1e-3, until_s - began.started_boottime_s)
