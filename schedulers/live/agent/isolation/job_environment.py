"""Environment variables that a job gets in addition to those of its user."""

from __future__ import annotations

import os
from pathlib import Path

from presage.schedulers.live import job_progress as progress
from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI, TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder

TASK, STATE = "PRESAGE_TASK", "PRESAGE_STATE"
_MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 default folder of NVIDIA's daemon


def job_environment(spec: TaskSpec, folder: TaskFolder, mps_percent: int | None) -> dict[str, str]:
    """Return all variables of a job's first process."""
    added = {
        TASK: folder.name,
        STATE: str(folder.state),
        progress.FILE: str(folder.progress_file),
        progress.FOLDER: spec.checkpoint,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.cuda or ())),
    }
    if spec.cuda is not None:
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if spec.memory_bytes:
            added[progress.MEMORY] = str(spec.memory_bytes)
    if mps_percent is not None:
        added["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(mps_percent)
    return {"OMP_NUM_THREADS": str(cpu_count(spec)), **spec.environment, **added}


def cpu_count(spec: TaskSpec) -> int:
    """Return the number of processors that a task may run on."""
    return len(os.sched_getaffinity(0) if spec.cpus is None else set(spec.cpus))


def mps_percent(spec: TaskSpec, compute_milli: int) -> int | None:
    """Return the percentage of GPU threads for a job that starts now; None without MPS."""
    pipes = Path(spec.environment.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER))
    if spec.cuda is None or not (pipes / "control").exists():
        return None
    if spec.can_grow:  # MPS cannot raise it later; a duty cycle reduces it to the share
        return 100
    return -(-compute_milli * 100 // FULL_DEVICE_MILLI)
