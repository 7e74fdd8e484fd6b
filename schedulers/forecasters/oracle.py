"""Oracle forecaster: forecasts equal to the ground truth, as an upper bound for policies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth


class Oracle:
    """Forecaster that returns the ground truth."""

    def __init__(self, ground_truth: GroundTruth, cluster: Cluster) -> None:
        self._ground_truth = ground_truth
        self._memory = cluster.memory_of

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction]:
        """Return the true values of each job on a kind of device."""
        ground_truth = self._ground_truth
        return [
            RuntimePrediction(
                ground_truth.solo_s(job, kind, job.gpus),
                ground_truth.compute_milli(job, kind),
                ground_truth.memory_bytes(job, kind),
            )
            for job, kind in requests
        ]

    def speedups(self, requests: Sequence[SpeedupRequest]) -> list[Speedup]:
        """Return the true speed of each size over that of the request."""
        return [self._speedup(*request) for request in requests]

    def _speedup(self, job: Job, kind: str, gpus: int, nodes: int, requested_nodes: int) -> Speedup:
        requested_s = self._run_s(job, kind, job.gpus, requested_nodes)
        run_s = self._run_s(job, kind, gpus, nodes)
        times = requested_s / run_s if run_s > 0 else 1.0
        return Speedup(times, times, times)

    def _run_s(self, job: Job, kind: str, gpus: int, nodes: int) -> float:
        run_s = self._ground_truth.solo_s(job, kind, gpus)
        return run_s * self._ground_truth.spread(job, kind, gpus, nodes) if nodes > 1 else run_s

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> list[Sequence[float]]:
        """Return the true slowdowns; infinite where the jobs do not fit into memory together."""
        return [
            self._ground_truth.slowdowns(kind, [(job, FULL_DEVICE_MILLI) for job in jobs])
            if self._ground_truth.fits(kind, self._memory[kind], jobs)
            else (math.inf,) * len(jobs)
            for kind, jobs in requests
        ]
