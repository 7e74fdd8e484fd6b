"""Shared, rate-limited cache of controller state for all page viewers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from presage.errors import ForbiddenError, InvalidJobError, UnknownJobError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.cached_value import BoundedCache, CachedValue, Snapshot
from presage.schedulers.live.ui.history.ended_jobs import ENDED_STATES, ROWS_PER_PAGE
from presage.schedulers.live.ui.history.history_chart import SPANS
from presage.schedulers.live.ui.log_tail import LogTail
from presage.schedulers.live.ui.recent_events import RecentEvents
from presage.schedulers.v1 import cluster_pb2 as pb

MAX_AGE_S = 0.8
EXPLANATION_MAX_AGE_S = 4.0  # the reason why a pending job waits rarely changes
FAILED_S = 3_600.0  # failed jobs need attention for so long
MAX_LISTED = 5_000  # jobs that are fetched; the others are only counted
MAX_JOBS = 256  # in each cache of single jobs
STARTS_MAX_AGE_S = 30.0  # predicted starts of waiting jobs take seconds of the controller
STARTS_SAMPLES, STARTS_HORIZON_S = 25, 7 * 86_400.0
HISTORY_MAX_AGE_S = 15.0  # there is a sample a minute
ENDED_MAX_AGE_S = 2.0
MAX_PAGES = 64  # pages of ended jobs in the cache
_LOG_THREADS = 4


class Poller:
    """Cache of the state of a controller; a context manager.

    Parameters
    ----------
    connect : callable
        Returns a new connection to the controller.
    """

    def __init__(self, connect: Callable[[], ClusterClient]) -> None:
        self._client = connect()
        self._threads = ThreadPoolExecutor(_LOG_THREADS, "log")
        self._recent = RecentEvents(connect)
        self._cluster = CachedValue(
            lambda: self._client.list(limit=MAX_LISTED, failed_s=FAILED_S), MAX_AGE_S
        )
        self._jobs = BoundedCache(self._make_cached_job(MAX_AGE_S), MAX_JOBS)
        self._explanations = BoundedCache(self._make_cached_job(EXPLANATION_MAX_AGE_S), MAX_JOBS)
        self._tails = BoundedCache(self._tail, MAX_JOBS)
        self._starts = CachedValue(self._predict_starts, STARTS_MAX_AGE_S)
        self._histories: BoundedCache[str, CachedValue[pb.HistoryResponse]] = BoundedCache(
            lambda span: CachedValue(lambda: self._history(span), HISTORY_MAX_AGE_S), len(SPANS)
        )
        self._ended: BoundedCache[int, CachedValue[pb.ListResponse]] = BoundedCache(
            lambda page: CachedValue(lambda: self._list_ended(page), ENDED_MAX_AGE_S), MAX_PAGES
        )
        self._predicting = ThreadPoolExecutor(1, "starts")
        self._prediction: Future[object] | None = None

    def cluster(self) -> Snapshot[pb.ListResponse]:
        """Return the nodes, and the jobs that have not ended or failed recently."""
        return self._cluster.read()

    def job(self, job_id: str) -> Snapshot[pb.Explanation]:
        """Return a job and the explanation of its state.

        Raises
        ------
        UnknownJobError
            There is no job of that name, or it belongs to another user.
        """
        return self._jobs.get(job_id).read()

    def explanations(self, job_ids: Iterable[str]) -> dict[str, pb.Explanation]:
        """Return why jobs wait, as far as the controller responds."""
        found, is_responding = {}, not self._cluster.last().failure
        for job_id in job_ids:
            cached = self._explanations.get(job_id)
            try:
                snapshot = cached.read() if is_responding else cached.last()
            except (UnknownJobError, InvalidJobError):  # it ended in the meantime
                continue
            is_responding = is_responding and not snapshot.failure
            if snapshot.value is not None:
                found[job_id] = snapshot.value
        return found

    def starts(self) -> dict[str, pb.WhatIfAnswer]:
        """Return the last predicted starts of waiting jobs; a thread predicts them again."""
        if self._prediction is None or self._prediction.done():
            self._prediction = self._predicting.submit(self._starts.read)
        return self._starts.last().value or {}

    def history(self, span: str) -> Snapshot[pb.HistoryResponse]:
        """Return the history of a span: a name of ``SPANS``."""
        return self._histories.get(span).read()

    def ended(self, page: int) -> Snapshot[pb.ListResponse]:
        """Return a page of the ended jobs, from 1; the newest jobs are on the first page."""
        return self._ended.get(page).read()

    def log(self, row: pb.JobStatus) -> Snapshot[str]:
        """Return the end of the log of a job's last attempt."""
        return self._tails.get((row.job.job_id, row.submitted_unix_s, row.attempt)).read()

    def events(self) -> list[pb.Event]:
        """Return the recent events, newest first."""
        return self._recent.events()

    def __enter__(self) -> Self:
        self._recent.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._recent.stop()
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._predicting.shutdown(wait=False, cancel_futures=True)

    def _make_cached_job(self, max_age_s: float) -> Callable[[str], CachedValue[pb.Explanation]]:
        return lambda job_id: CachedValue(lambda: self._explain(job_id), max_age_s)

    def _predict_starts(self) -> dict[str, pb.WhatIfAnswer]:
        request = pb.WhatIfRequest(samples=STARTS_SAMPLES, horizon_s=STARTS_HORIZON_S)
        return {answer.job_id: answer for answer in self._client.what_if(request).answers}

    def _history(self, span: str) -> pb.HistoryResponse:
        now_s, found = time.time(), SPANS[span]
        return self._client.history(now_s - found.span_s, now_s, step_s=found.step_s)

    def _list_ended(self, page: int) -> pb.ListResponse:
        offset = ROWS_PER_PAGE * (page - 1)
        return self._client.list(
            ended=True, limit=ROWS_PER_PAGE, offset=offset, states=ENDED_STATES
        )

    def _explain(self, job_id: str) -> pb.Explanation:
        try:
            return self._client.explain(job_id)
        except ForbiddenError as error:  # about this job only: the controller is responding
            raise UnknownJobError(str(error)) from error

    def _tail(self, key: tuple[str, float, int]) -> LogTail:
        job_id = key[0]  # the rest of the key separates attempts, and jobs of the same name
        return LogTail(lambda offset: self._client.logs(job_id, offset=offset), self._threads)
