"""Later arrivals, resampled from the arrivals so far.

Whole blocks of the past are repeated, so that bursts of a user's jobs and the rhythm of a day stay
as they were. Rates differ from block to block; arrivals at a constant rate, or blocks that are much
shorter than the time that a job waits, would make intervals too narrow. So would the rates of the
past alone, since those of the future are others: each block has a random factor, the mean number of
copies of each of its jobs, and each future has another (decision 62).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import replace
from random import Random

from presage.schedulers.core.job import Job
from presage.schedulers.what_if.snapshot import Snapshot
from presage.system.text.units import counted

DAY_S = 86_400.0
LEAST_KNOWN_S = 3_600.0  # of the past; of less, nothing is learnt
LEAST_DAYS, MOST_DAYS = 4, 56  # of the past; only the last ones are repeated
BLOCKS = 8  # of the past, if it is long enough
# Standard deviations of the logarithms of factors: of a block, and of a future, relative to the
# change of the rate between the halves of the past. Factors have a median of 1.
BLOCK_SPREAD, CHANGE_SPREAD = 0.4, 0.3
_MOST_CHANGE, _MOST_FACTOR = 20.0, 8.0  # and at least their inverses


class Arrivals:
    """Arrivals of a snapshot's past, and copies of them for its future.

    Blocks are an eighth of the known past, in whole days; they may overlap. If less than
    ``LEAST_DAYS`` days are known, a quarter of that time takes the place of a day.

    Parameters
    ----------
    never_ran : collection of str
        Jobs to leave out, because they ended without a run.

    Attributes
    ----------
    window_s : float
        Length of the past that is repeated, in seconds; 0 if too little is known.
    jobs : list of Job
        Jobs that were submitted in it, in order.
    """

    def __init__(self, snapshot: Snapshot, never_ran: Collection[str] = ()) -> None:
        self._now_s = now_s = snapshot.now_s
        known_s = now_s - snapshot.past.since_s
        known_s = known_s if known_s >= LEAST_KNOWN_S else 0.0
        self._day_s = min(DAY_S, known_s / LEAST_DAYS)
        self._days = min(MOST_DAYS, int(known_s / self._day_s + 1e-9)) if known_s else 0
        self._block_days = max(1, self._days // BLOCKS)
        self.window_s = self._days * self._day_s
        jobs = [*snapshot.jobs.values(), *(past.job for past in snapshot.past.jobs)]
        left_out = {*never_ran}
        recent = [
            job
            for job in jobs
            if now_s - self.window_s <= job.submit_s < now_s and job.job_id not in left_out
        ]
        self.jobs = sorted(recent, key=lambda job: (job.submit_s, job.job_id))
        self._times_s = [job.submit_s for job in self.jobs]
        early = bisect_left(self._times_s, now_s - self.window_s / 2)
        change = (len(self.jobs) - early + 1) / (early + 1)
        self._log_change = math.log(min(_MOST_CHANGE, max(change, 1 / change)))

    def draw(self, rng: Random, until_s: float) -> Iterator[tuple[Job, Job]]:
        """Yield later jobs by submission time, each with the job that it is a copy of."""
        if not self.jobs:
            return
        number, begin_s, block_s = 0, self._now_s, self._block_days * self._day_s
        # Resampled twice: the past is a sample itself, so its mean rate is not known exactly.
        past = [
            self._day_s * rng.randint(self._block_days, self._days)
            for _ in range(self._days // self._block_days)
        ]
        of_future = rng.gauss(0.0, CHANGE_SPREAD * self._log_change)
        while begin_s <= until_s:
            factor = math.exp(rng.gauss(of_future, BLOCK_SPREAD))
            factor = min(_MOST_FACTOR, max(1 / _MOST_FACTOR, factor))
            from_s = self._now_s - rng.choice(past)
            first = bisect_left(self._times_s, from_s)
            last = bisect_left(self._times_s, from_s + block_s)
            for job in self.jobs[first:last]:
                at_s = max(self._now_s, begin_s + (job.submit_s - from_s))
                for _ in range(int(factor + rng.random())):
                    number += 1
                    yield replace(job, job_id=f"~{number}~{job.job_id}", submit_s=at_s), job
            begin_s += block_s

    @property
    def sentence(self) -> str:
        """What is assumed about later arrivals, in a sentence."""
        if not self.jobs:
            return "no jobs arrive later: no arrivals of at least an hour are known"
        return (
            f"later arrivals repeat random parts of the last {_length(self.window_s)}, in which "
            f"{counted(len(self.jobs), 'job')} {'was' if len(self.jobs) == 1 else 'were'} submitted"
        )


def _length(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"
