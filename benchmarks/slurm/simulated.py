"""The same replay in our simulator, with Slurm's rule of backfilling."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.slurm.replay import GPUS, LEAD_MINUTES, NODES
from benchmarks.slurm.workload import MINUTE_S, USERS, ReplayJob, minutes_of
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.policies.backfilling.backfill import Backfill
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation

_MEMORY_BYTES = 40 * 2**30


class _Limits:
    """Forecaster whose run times are the time limits of jobs."""

    def __init__(self, minutes: Sequence[int]) -> None:
        self._minutes = minutes

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction]:
        """Return the time limits."""
        return [
            RuntimePrediction(self._minutes[int(job.job_id)] * MINUTE_S, FULL_DEVICE_MILLI, 0)
            for job, _ in requests
        ]

    def slowdowns(self, requests: Sequence[object]) -> list[None]:
        """Return None of each co-location: no device is shared."""
        return [None] * len(requests)


def simulated_waits_s(
    jobs: Sequence[ReplayJob],
    user: str,
    limits: str,
    ran_s: Sequence[float],
    *,
    backfill: bool = True,
) -> list[float]:
    """Return the waiting time of each job in seconds; parameters as ``replay``.

    Parameters
    ----------
    ran_s : sequence of float
        Run times of the replay. Time limits are those of the replay as well.
    """
    minutes = [_limit_minutes(job, user, limits) for job in jobs]
    cluster = Cluster(tuple(Node(f"n{i}", GPUS, "a100", _MEMORY_BYTES) for i in range(NODES)))
    simulation = Simulation(
        cluster,
        Backfill(reserve="all") if backfill else Fifo(),
        _Limits(minutes),
        TraceDurations({str(job.index): s for job, s in zip(jobs, ran_s, strict=True)}),
        [Job(str(job.index), job.submit_s, gpus=job.gpus) for job in jobs],
    )
    simulation.run()
    waits_s = {one.job.job_id: one.status.waited_s for one in simulation.results}
    return [waits_s[str(job.index)] for job in jobs]


def _limit_minutes(job: ReplayJob, user: str, limits: str) -> int:
    if limits == "true":
        return minutes_of(job.runtime_s) + 1
    own = USERS[user](job)
    if limits == "as requested":
        return own
    return min(own, max(LEAD_MINUTES, minutes_of(job.quantile_s)))
