"""Predicted ends of running jobs, of which only those that change are predicted again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.state import ChangeMark, State


class PredictedEnds:
    """Predicted ends of all running jobs, from one decision to the next.

    A prediction is a line in time, because a job's progress is. It is kept until the status, the
    reported progress or the forecasts of the job change. Copies start without predictions.
    """

    def __init__(self) -> None:
        self._forecasts: Forecasts | None = None
        self._mark: ChangeMark | None = None
        self._requested = 0  # of the changes of the forecasts, those that are known
        self._job_ids: list[str] = []
        self._rows: dict[str, int] = {}
        # Run time, begin, and progress at a time with its rate, by job.
        self._lines = np.empty((0, 5))

    def __reduce__(self) -> tuple[type[PredictedEnds], tuple[()]]:
        return PredictedEnds, ()

    def in_order(self, state: State, forecasts: Forecasts) -> Iterator[tuple[float, str]]:
        """Yield when each running job is predicted to end, earliest first, and its id.

        The time is :func:`end_s`; it is infinite if unknown. Jobs that end together are in the
        order of their ids.
        """
        self._update(state, forecasts)
        job_ids, now_s = self._job_ids, state.now_s
        runtime_s, begin_s, done, since_s, per_s = self._lines[: len(job_ids)].T
        progress = np.minimum(1.0, done + np.maximum(0.0, now_s - since_s) * per_s)
        with np.errstate(invalid="ignore"):
            ends_s = np.maximum(now_s, begin_s) + (1.0 - progress) * runtime_s
        # Most callers need only the first ends, so the arrays are not converted to lists.
        for at_s, rows in groupby(np.argsort(ends_s), ends_s.__getitem__):
            for job_id in sorted(map(job_ids.__getitem__, rows)):
                yield float(at_s), job_id

    def _update(self, state: State, forecasts: Forecasts) -> None:
        mark, requested = state.mark(), forecasts.changes.end
        changed = self._changed(state, forecasts)
        if changed is None:
            self._mark, self._job_ids, self._rows = None, [], {}
            changed = state.running
        for job_id in changed:
            status = state.running.get(job_id)
            if status is None:
                self._remove(job_id)
            else:
                self._put(state.job(job_id), status, state, forecasts)
        # Only now: after an exception, the same jobs are predicted again.
        self._forecasts, self._mark, self._requested = forecasts, mark, requested

    def _changed(self, state: State, forecasts: Forecasts) -> Iterable[str] | None:
        """Return the jobs that have changed since the last decision; None if that is unknown."""
        if self._mark is None or forecasts is not self._forecasts:
            return None
        changed = state.changed_since(self._mark)
        requested = forecasts.changes.since(self._requested)
        return None if changed is None or requested is None else changed.union(requested)

    def _put(self, job: Job, status: JobStatus, state: State, forecasts: Forecasts) -> None:
        runtime_s = _runtime_s(job, status.allocations, state, forecasts)
        begin_s = status.since_s + _owed_s(job, status)
        row = self._rows.setdefault(job.job_id, len(self._job_ids))
        if row == len(self._job_ids):
            self._job_ids.append(job.job_id)
        if row == len(self._lines):
            self._lines = np.resize(self._lines, (max(64, 2 * row), self._lines.shape[1]))
        self._lines[row] = runtime_s, begin_s, *state.progress_line(job.job_id)

    def _remove(self, job_id: str) -> None:
        """Remove a job, whose row the last one gets."""
        row = self._rows.pop(job_id, None)
        if row is None:
            return
        last = self._job_ids.pop()
        if last != job_id:
            self._job_ids[row], self._rows[last] = last, row
            self._lines[row] = self._lines[len(self._job_ids)]


def end_s(job: Job, allocations: Iterable[Allocation], state: State, forecasts: Forecasts) -> float:
    """Return when a job is predicted to end that runs on some devices, or is started there now.

    The time includes periodic checkpoints and the restart of a job that ran before. On fewer
    devices than requested the run time grows in proportion.
    """
    status = state.status(job.job_id)
    runs = status.phase is Phase.RUNNING
    left_s = (1.0 - state.progress(job.job_id)) * _runtime_s(job, allocations, state, forecasts)
    begin_s = (status.since_s if runs else state.now_s) + _owed_s(job, status)
    return max(state.now_s, begin_s) + left_s


def _runtime_s(
    job: Job, allocations: Iterable[Allocation], state: State, forecasts: Forecasts
) -> float:
    """Return the predicted time of all of a job's work, with its checkpoints."""
    allocations = tuple(allocations)
    kinds = {state.cluster.kind_of(allocation.device) for allocation in allocations}
    costs = job.checkpointing
    runtime_s = max(forecasts.prediction(job, kind).runtime_s for kind in kinds)
    return runtime_s * (job.gpus / len(allocations) * (1 + costs.cost_s / costs.interval_s))


def _owed_s(job: Job, status: JobStatus) -> float:
    """Return the time until a job that runs, or is started, goes on with its work."""
    costs = job.checkpointing
    ran_before = status.starts > (status.phase is Phase.RUNNING)
    return costs.cost_s + costs.restart_s if ran_before else 0.0
