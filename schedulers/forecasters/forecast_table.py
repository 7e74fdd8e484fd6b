"""Table forecaster: forecasts looked up in measurements, without a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest
from presage.schedulers.simulator.ground_truth.measurements import Measurements


class Table:
    """Forecaster that returns the measurements of a job's model; None for other models."""

    def __init__(self, measurements: Measurements) -> None:
        self._measured = measurements

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the run time for the requested iterations, utilization and memory of each job.

        The upper bound of the run time assumes the 90th percentile of the step time for all steps.
        """
        return [self._prediction(job, kind) for job, kind in requests]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return the slowdowns of measured co-locations; None for others."""
        return [self._slowdowns(kind, jobs) for kind, jobs in requests]

    def speedups(self, requests: Sequence[SpeedupRequest]) -> list[Speedup | None]:
        """Return the measured speed-up of each job's model; None without a curve of the model."""
        return [self._speedup(*request) for request in requests]

    def _speedup(
        self, job: Job, kind: str, gpus: int, nodes: int, requested_nodes: int
    ) -> Speedup | None:
        curve = self._measured.scaling.get((job.model, kind))
        if curve is None:
            return None
        batch = self._measured.features[job.model].job.batch_size * job.gpus
        times = curve.step_s(batch, job.gpus, requested_nodes) / curve.step_s(batch, gpus, nodes)
        return Speedup(times, times, times)

    def _prediction(self, job: Job, kind: str) -> RuntimePrediction | None:
        key, measured = (job.model, kind), self._measured
        if key not in measured.step_s:
            return None
        busy, memory_bytes = measured.busy.get(key, 1.0), measured.memory_bytes.get(key, 0)
        step_s, setup_s = measured.step_s[key], measured.setup_s.get(key, 0.0)
        # 0 iterations: the run time is unknown. 0 bytes: the job gets an exclusive device.
        runtime_s = setup_s + job.iterations * step_s if job.iterations else float("inf")
        step_high_s = measured.step_high_s.get(key)
        high_s = step_high_s and setup_s + job.iterations * max(step_s, step_high_s)
        return RuntimePrediction(
            runtime_s, round(busy * FULL_DEVICE_MILLI), memory_bytes, setup_s=setup_s, high_s=high_s
        )

    def _slowdowns(self, kind: str, jobs: tuple[Job, ...]) -> Sequence[float] | None:
        order = sorted(range(len(jobs)), key=lambda i: jobs[i].model)
        measured = self._measured.slowdowns.get((kind, tuple(jobs[i].model for i in order)))
        if measured is None:
            return None
        slowdowns = [0.0] * len(jobs)
        for i, slowdown in zip(order, measured, strict=True):
            slowdowns[i] = slowdown
        return slowdowns
