"""Predicted starts of a replay's waiting jobs: ``presage slurm when`` and ``squeue --start``.

Slurm's state is stored during the replay. Simulations run afterwards, so that they do not delay it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tests.schedulers.slurm.site import Site

from presage.errors import ServiceError
from presage.schedulers.slurm.slurm_commands import run_slurm, unix_s_of
from presage.schedulers.slurm.when.slurm_queue import SlurmState, read_state
from presage.schedulers.slurm.when.slurm_snapshot import copy_slurm
from presage.schedulers.what_if.answer import Distribution, Verdict
from presage.schedulers.what_if.what_if import what_if

EVERY_S = 3600.0  # of the cluster's clock
SAMPLES = 25
LIMIT_S = 10.0  # of the processor, for the answers of one time; then fewer futures answer
_DAY_S = 86_400.0


class PredictedStart(NamedTuple):
    """One waiting job at one time; times are in seconds from then.

    Attributes
    ----------
    true_s : float
        Its start.
    low_s, median_s, high_s : float or None
        80 % interval and median by ``presage slurm when``; None if unknown.
    squeue_s : float or None
        Start by ``squeue --start``; None without one.
    """

    true_s: float
    low_s: float | None
    median_s: float | None
    high_s: float | None
    squeue_s: float | None


class Questions:
    """States of a replay, about which questions are answered when it is over.

    Parameters
    ----------
    begin_s : float
        Time of the first possible submission.
    """

    def __init__(self, site: Site, begin_s: float) -> None:
        self._site, self._begin_s = site, begin_s
        self._stored_s = begin_s
        self._found: list[tuple[SlurmState, dict[str, int]]] = []

    def ask(self) -> None:
        """Store the state and the planned starts, unless that was done a short time ago.

        Nothing is stored while slurmctld does not answer.
        """
        now_s = float(self._site.cluster.run("date", "+%s"))
        if now_s < self._stored_s + EVERY_S:
            return
        self._stored_s = now_s
        with suppress(ServiceError):
            self._store(now_s)

    def _store(self, now_s: float) -> None:
        planned = run_slurm(
            ["squeue", "--noheader", "--states=pending", "--Format=JobID:16,StartTime:20"]
        )
        starts = {job: unix_s_of(start) for job, start in map(str.split, planned.splitlines())}
        state = read_state(now_s)
        self._found.append((replace(state, ended_for_s=now_s - self._begin_s), starts))

    def answered(self, starts_s: Mapping[str, float]) -> Iterator[PredictedStart]:
        """Yield the answers about all jobs that waited, next to their true starts."""
        for state, planned in self._found:
            end_s = time.process_time() + LIMIT_S
            copied = copy_slurm(state)
            later = {one.job.job_id for one in copied.snapshot.returning}
            jobs = {name: job for name, job in copied.snapshot.jobs.items() if name not in later}
            # No user knows what will be submitted later, so begin times are left out.
            snapshot = replace(copied.snapshot, jobs=jobs, returning=())
            answers = what_if(
                snapshot,
                list(snapshot.pending),
                policy=copied.policy,
                forecaster=copied.forecaster,
                planned_by=copied.planned_by,
                samples=SAMPLES,
                horizon_s=2 * _DAY_S,
                ends=False,
                should_stop=partial(_is_over, end_s),
            )
            for answer in answers:
                is_known = answer.verdict is Verdict.PREDICTED
                at_s = planned.get(answer.job_id, 0)
                yield PredictedStart(
                    starts_s[answer.job_id] - state.now_unix_s,
                    *_interval(answer.start if is_known else None),
                    max(0.0, at_s - state.now_unix_s) if at_s else None,
                )


def _interval(start: Distribution | None) -> tuple[float | None, float | None, float | None]:
    if start is None:
        return None, None, None
    low_s, median_s, high_s = (
        one if math.isfinite(one) else None for one in map(start.quantile_s, (0.1, 0.5, 0.9))
    )
    return low_s, median_s, high_s


def _is_over(end_s: float) -> bool:
    return time.process_time() > end_s
