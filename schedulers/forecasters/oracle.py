"""Forecasts that come true: how good a policy could be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from presage.schedulers.core.allocation import WHOLE
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Outlook
from presage.schedulers.core.job import Job
from presage.schedulers.simulator.ground_truth import Truth


class Oracle:
    """Says what the truth is; the only forecaster that is given it."""

    def __init__(self, truth: Truth, cluster: Cluster) -> None:
        self._truth = truth
        self._memory = cluster.memory_of

    def outlooks(self, asked: Sequence[tuple[Job, str]]) -> list[Outlook]:
        """What will be, of each."""
        truth = self._truth
        return [
            Outlook(
                truth.alone_s(job, kind, job.gpus),
                truth.compute_milli(job, kind),
                truth.memory_bytes(job, kind),
            )
            for job, kind in asked
        ]

    def slowdowns(self, asked: Sequence[tuple[str, tuple[Job, ...]]]) -> list[Sequence[float]]:
        """How slow each will be; infinitely where they do not fit together."""
        return [
            self._truth.slowdowns(kind, [(job, WHOLE) for job in jobs])
            if self._truth.fits(kind, self._memory[kind], jobs)
            else (math.inf,) * len(jobs)
            for kind, jobs in asked
        ]
