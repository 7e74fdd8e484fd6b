"""Limits of the size of an elastic job for a time, as its policy sees them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.replayed_state import LiveJob

_FIRST_DELAY_S, _MOST_DELAY_S = 10.0, 3600.0


class SizeLimit(NamedTuple):
    """Range of the number of devices of an elastic job until a time.

    A job that is complete, or has a worker on a node that is not available, keeps its size. One
    whose workers failed does not grow for a time, and no job grows beyond what its batch allows.
    """

    least: int
    most: int
    until_s: float = math.inf

    def apply(self, job: Job) -> Job:
        """Return a job that is limited to the range."""
        if self.least == self.most:
            return replace(job, gpus=self.most, min_gpus=0, max_gpus=0)
        gpus = min(job.gpus, self.most)
        return replace(job, gpus=gpus, min_gpus=min(self.least, gpus), max_gpus=self.most)


def may_grow_s(job: LiveJob) -> float:
    """Return the time from which a job may grow: a while after the last failure of a worker.

    A node on which workers cannot run would else restart them without end.
    """
    if not job.member_failures:
        return 0.0
    delay_s = min(_FIRST_DELAY_S * 2.0 ** (job.member_failures - 1), _MOST_DELAY_S)
    return job.member_failed_s + delay_s
