"""Waiting for jobs of a live cluster, also while its controller is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb

TERMINAL_PHASES = frozenset((pb.FINISHED, pb.FAILED, pb.CANCELLED, pb.REJECTED, pb.TIMED_OUT))
POLL_S = 1.0


def jobs_as_completed(
    client: ClusterClient, job_ids: Sequence[str], *, on_away: Callable[[ServiceError], None]
) -> Iterator[pb.JobStatus]:
    """Yield each of the jobs as soon as it has ended.

    After the first response the controller may be unavailable for any time; ``on_away`` is called
    each time it becomes unavailable.

    Raises
    ------
    ServiceError
        The controller does not respond to the first request.
    UnknownJobError
        A job is unknown, or has been removed.
    """
    left = dict.fromkeys(job_ids)
    found = client.list(list(left))
    while True:
        for row in found.jobs:
            if row.phase in TERMINAL_PHASES:
                del left[row.job.job_id]
                yield row
        if not left:
            return
        time.sleep(POLL_S)
        found = _list(client, list(left), on_away)


def _list(
    client: ClusterClient, job_ids: Sequence[str], on_away: Callable[[ServiceError], None]
) -> pb.ListResponse:
    is_away = False
    while True:
        try:
            return client.list(job_ids)
        except ServiceError as error:
            if not is_away:
                on_away(error)
            is_away = True
            time.sleep(POLL_S)
