"""Registry of benchmark tasks."""

from __future__ import annotations

from collections.abc import Mapping

from presage.models.training.targets import TARGETS
from presage.pipelines.benchmark.fits import FitsTask
from presage.pipelines.benchmark.interference import InterferenceTask
from presage.pipelines.benchmark.scale_out import ScaleOutTask
from presage.pipelines.benchmark.solo import LONGER, SHARP, SoloTask
from presage.pipelines.benchmark.task import Task

_TRAIN_MEMORY = SoloTask(TARGETS["memory"], lambda job: job.trains, "MiB", scale=2**-20)
TASKS: Mapping[str, Task] = {
    "train-step": SoloTask(TARGETS["step_time"], lambda job: job.trains, "seconds", config=LONGER),
    "inference-step": SoloTask(TARGETS["step_time"], lambda job: not job.trains, "seconds"),
    "utilization": SoloTask(
        TARGETS["compute_utilization"],
        lambda _: True,
        "percentage points",
        scale=100.0,
        config=SHARP,
    ),
    "train-memory": _TRAIN_MEMORY,
    "fits-in-memory": FitsTask(_TRAIN_MEMORY),
    "interference": InterferenceTask(),
    "scale-out": ScaleOutTask(),
}
