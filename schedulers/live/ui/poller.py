"""Looks at a controller, once for all who look at the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from presage.errors import ForbiddenError, InvalidJobError, UnknownJobError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.cached_value import BoundedCache, CachedValue, Seen
from presage.schedulers.live.ui.log_tail import LogTail
from presage.schedulers.live.ui.recent_events import RecentEvents
from presage.schedulers.v1 import cluster_pb2 as pb

FRESH_S = 0.8
WHY_S = 4.0  # a job in the queue seldom waits for something else
FAILED_S = 3_600.0  # a job that failed so long ago needs a look no more
MOST_SEEN = 5_000  # of the cluster's jobs; of others it is said how many there are
MOST_JOBS = 256  # that are remembered
_LOGS_AT_ONCE = 4


class Poller:
    """A context manager.

    Parameters
    ----------
    connect : callable
        A new connection to the controller.
    """

    def __init__(self, connect: Callable[[], ClusterClient]) -> None:
        self._client = connect()
        self._threads = ThreadPoolExecutor(_LOGS_AT_ONCE, "log")
        self._recent = RecentEvents(connect)
        self._cluster = CachedValue(
            lambda: self._client.list(most=MOST_SEEN, failed_s=FAILED_S), FRESH_S
        )
        self._jobs = BoundedCache(self._job_kept(FRESH_S), MOST_JOBS)
        self._whys = BoundedCache(self._job_kept(WHY_S), MOST_JOBS)
        self._tails = BoundedCache(self._tail, MOST_JOBS)

    def cluster(self) -> Seen[pb.ListResponse]:
        """Jobs that are not over, or failed of late, and nodes."""
        return self._cluster.read()

    def job(self, job_id: str) -> Seen[pb.Explanation]:
        """A job and why it is where it is.

        Raises
        ------
        UnknownJobError
            There is none of that name, or it is another user's.
        """
        return self._jobs.of(job_id).read()

    def whys(self, job_ids: Iterable[str]) -> dict[str, pb.Explanation]:
        """Why jobs wait, as far as the controller says it."""
        found, answers = {}, not self._cluster.last().failure
        for job_id in job_ids:
            kept = self._whys.of(job_id)
            try:
                seen = kept.read() if answers else kept.last()
            except (UnknownJobError, InvalidJobError):  # it ended in the meantime
                continue
            answers = answers and not seen.failure
            if seen.found is not None:
                found[job_id] = seen.found
        return found

    def log(self, row: pb.JobStatus) -> Seen[str]:
        """The end of what a job wrote in its last attempt."""
        return self._tails.of((row.job.job_id, row.submitted_unix_s, row.attempt)).read()

    def events(self) -> list[pb.Event]:
        """What happened last, the newest first."""
        return self._recent.events()

    def __enter__(self) -> Self:
        self._recent.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._recent.stop()
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _job_kept(self, fresh_s: float) -> Callable[[str], CachedValue[pb.Explanation]]:
        return lambda job_id: CachedValue(lambda: self._explain(job_id), fresh_s)

    def _explain(self, job_id: str) -> pb.Explanation:
        try:
            return self._client.explain(job_id)
        except ForbiddenError as error:  # of this job alone: the controller does answer
            raise UnknownJobError(str(error)) from error

    def _tail(self, key: tuple[str, float, int]) -> LogTail:
        job_id = key[0]  # what another attempt wrote, or a job of its name before, is not its own
        return LogTail(lambda offset: self._client.logs(job_id, offset=offset), self._threads)
