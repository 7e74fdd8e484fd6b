"""Allocation of devices by Pollux's objective, as a rival of the policy ``elastic``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.queue import Key
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.elastic.sizes import Demand, Increment, increments

_NO_DEVICES = -1e6  # value of a job that waits, against -1 of a job with its request


class Pollux(Elastic):
    """Policy that maximizes the harmonic mean of the jobs' speed-ups over their requests.

    That is Pollux's objective with p = -1 and a constant batch size, where goodput is throughput.
    All jobs run if they can, in order of arrival; the remaining time of a job does not count. The
    allocation is searched greedily in place of Pollux's genetic algorithm. Placement, forecasts and
    parameters are those of ``elastic``.

    References
    ----------
    Qiao et al.: Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning,
    OSDI 2021, section 4.2.
    """

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then arrival."""
        del status, forecasts
        return (-job.priority, job.submit_s)

    def _increments_of(
        self, job: Job, sizes: Sequence[int], run_s: Callable[[int], float]
    ) -> tuple[Increment, ...]:
        requested_s = run_s(min(job.gpus, sizes[-1]))

        def value(gpus: int) -> float:
            relative = run_s(gpus) / requested_s if requested_s > 0 else 1.0
            return -relative if math.isfinite(relative) else -1.0

        return increments(sizes, value, sizes[-1], nothing=_NO_DEVICES)

    def _demand(self, job: Job, found: tuple[Increment, ...], left: float) -> Demand:
        del left
        return Demand((not job.latency_sensitive, -job.priority), 1.0, found, job.most_gpus)
