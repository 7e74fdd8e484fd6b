"""Forecasts looked up: of a cluster where every model was measured before."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.simulator.measurements import Measurements


class Table:
    """What was measured of a job's model is foretold of the job; of another model nothing is."""

    def __init__(self, measurements: Measurements) -> None:
        self._measured = measurements

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Of each; the run time is that of the iterations its user asks for.

        It is promised to take no longer than if each of its steps were as long as the longest of
        nine in ten.
        """
        return [self._prediction(job, kind) for job, kind in asked]

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Of those that were measured together, and nobody else."""
        return [self._beside(kind, jobs) for kind, jobs in asked]

    def _prediction(self, job: Job, kind: str) -> RuntimePrediction | None:
        on, measured = (job.model, kind), self._measured
        if on not in measured.step_s:
            return None
        busy, memory_bytes = measured.busy.get(on, 1.0), measured.memory_bytes.get(on, 0)
        step_s, setup_s = measured.step_s[on], measured.setup_s.get(on, 0.0)
        # 0 iterations, or 0 bytes: nobody said. Such a run time is unknown, such a job is alone.
        runtime_s = setup_s + job.iterations * step_s if job.iterations else float("inf")
        longest_s = measured.step_high_s.get(on)
        high_s = longest_s and setup_s + job.iterations * max(step_s, longest_s)
        return RuntimePrediction(
            runtime_s, round(busy * FULL_DEVICE_MILLI), memory_bytes, setup_s=setup_s, high_s=high_s
        )

    def _beside(self, kind: str, jobs: tuple[Job, ...]) -> Sequence[float] | None:
        order = sorted(range(len(jobs)), key=lambda i: jobs[i].model)
        found = self._measured.slowdowns.get((kind, tuple(jobs[i].model for i in order)))
        if found is None:
            return None
        factors = [0.0] * len(jobs)
        for i, slowdown in zip(order, found, strict=True):
            factors[i] = slowdown
        return factors
