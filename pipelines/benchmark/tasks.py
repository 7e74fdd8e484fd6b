"""What can be asked of a benchmark: which rows of a campaign, and which of their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from presage.features.job import JobFeatures
from presage.pipelines.benchmark.rows import Rows, is_training, solo_rows
from presage.pipelines.benchmark.solo import MEMORY, STEP_TIME, UTILIZATION, SumTarget
from presage.pipelines.campaigns import Campaign


@dataclass(frozen=True, slots=True)
class SoloTask:
    """A measurement of jobs alone.

    Attributes
    ----------
    column : str
        Of `executions`.
    wanted : callable
        Which jobs.
    unit : str
        Of the label, as figures are given.
    scale : float
        Of that unit, in one of the column's.
    """

    column: str
    wanted: Callable[[JobFeatures], bool]
    unit: str
    target: SumTarget
    scale: float = 1.0

    def rows(self, campaigns: Sequence[Campaign]) -> Rows:
        """Rows of all campaigns."""
        return solo_rows(campaigns, self.column, self.wanted)


TASKS: Mapping[str, SoloTask] = {
    "train-step": SoloTask("step_time_median_s", is_training, "seconds", STEP_TIME),
    "inference-step": SoloTask(
        "step_time_median_s", lambda job: not is_training(job), "seconds", STEP_TIME
    ),
    "utilization": SoloTask(
        "compute_utilization", lambda _: True, "percentage points", UTILIZATION, scale=100.0
    ),
    "train-memory": SoloTask("memory_peak_bytes", is_training, "bytes", MEMORY),
}
