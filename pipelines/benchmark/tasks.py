"""Registry of benchmark tasks."""

from __future__ import annotations

from collections.abc import Mapping

from presage.features.quantities.quantity_registry import (
    COMPUTE_UTILIZATION,
    INTERFERENCE,
    MEMORY,
    STEP_TIME,
    solo_quantities,
)
from presage.pipelines.benchmark.benchmark_task import Task
from presage.pipelines.benchmark.fits import FitsTask
from presage.pipelines.benchmark.interference import InterferenceTask
from presage.pipelines.benchmark.scaling.scale_out import ScaleOutTask
from presage.pipelines.benchmark.solo import LONGER, SHARP, SoloTask

_TRAIN_MEMORY = SoloTask(MEMORY, lambda job: job.trains, "MiB", scale=2**-20)
# Tasks whose jobs, unit or training settings are their own.
TASKS: Mapping[str, Task] = {
    "train-step": SoloTask(STEP_TIME, lambda job: job.trains, "seconds", config=LONGER),
    "inference-step": SoloTask(STEP_TIME, lambda job: not job.trains, "seconds"),
    "utilization": SoloTask(
        COMPUTE_UTILIZATION,
        lambda _: True,
        "percentage points",
        scale=100.0,
        config=SHARP,
    ),
    "train-memory": _TRAIN_MEMORY,
    "fits-in-memory": FitsTask(_TRAIN_MEMORY),
    INTERFERENCE.name: InterferenceTask(),
    "scale-out": ScaleOutTask(),
}
_COVERED = (COMPUTE_UTILIZATION, MEMORY, STEP_TIME)


def tasks() -> dict[str, Task]:
    """Return the tasks by name: those above, and one of each other solo quantity, of all jobs."""
    others = [one for one in solo_quantities().values() if one not in _COVERED]
    return {
        **TASKS,
        **{one.name.replace("_", "-"): SoloTask(one, lambda _: True, one.unit) for one in others},
    }
