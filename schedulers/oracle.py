"""Forecasts that come true: how good a policy could be."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.forecasts import Outlook
from presage.schedulers.grant import WHOLE
from presage.schedulers.job import Job
from presage.schedulers.truth import Truth


class Oracle:
    """Says what the truth is; the only forecaster that is given it."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def outlooks(self, asked: Sequence[tuple[Job, str]]) -> list[Outlook]:
        """What will be, of each."""
        truth = self._truth
        return [
            Outlook(truth.alone_s(job, kind, job.gpus), WHOLE, truth.memory_bytes(job, kind))
            for job, kind in asked
        ]
