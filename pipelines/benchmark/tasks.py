"""What can be asked of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping

from presage.pipelines.benchmark.fits import FitsTask
from presage.pipelines.benchmark.rows import is_training
from presage.pipelines.benchmark.scale_out import ScaleOutTask
from presage.pipelines.benchmark.solo import MEMORY, STEP_TIME, UTILIZATION, SoloTask
from presage.pipelines.benchmark.task import Task

_TRAIN_MEMORY = SoloTask("memory_peak_bytes", is_training, "bytes", MEMORY)
TASKS: Mapping[str, Task] = {
    "train-step": SoloTask("step_time_median_s", is_training, "seconds", STEP_TIME),
    "inference-step": SoloTask(
        "step_time_median_s", lambda job: not is_training(job), "seconds", STEP_TIME
    ),
    "utilization": SoloTask(
        "compute_utilization", lambda _: True, "percentage points", UTILIZATION, scale=100.0
    ),
    "train-memory": _TRAIN_MEMORY,
    "fits-in-memory": FitsTask(_TRAIN_MEMORY),
    "scale-out": ScaleOutTask(),
}
