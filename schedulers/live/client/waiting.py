"""Waiting for jobs of a live cluster, whatever becomes of its controller meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb

OVER = frozenset((pb.FINISHED, pb.FAILED, pb.CANCELLED, pb.REJECTED))
EVERY_S = 1.0  # the controller is asked


def each_when_over(
    client: ClusterClient, job_ids: Sequence[str], *, on_away: Callable[[ServiceError], None]
) -> Iterator[pb.JobStatus]:
    """Each of these jobs, as soon as it is over.

    A controller that has answered once may be away for as long as it likes: ``on_away`` is told
    when it begins to be.

    Raises
    ------
    ServiceError
        None answers to the first question.
    UnknownJobError
        One of the jobs is not known, or any more.
    """
    left = dict.fromkeys(job_ids)
    found = client.list(list(left))
    while True:
        for row in found.jobs:
            if row.phase in OVER:
                del left[row.job.job_id]
                yield row
        if not left:
            return
        time.sleep(EVERY_S)
        found = _heard(client, list(left), on_away)


def _heard(
    client: ClusterClient, job_ids: Sequence[str], on_away: Callable[[ServiceError], None]
) -> pb.ListResponse:
    told = False
    while True:
        try:
            return client.list(job_ids)
        except ServiceError as error:
            if not told:
                on_away(error)
            told = True
            time.sleep(EVERY_S)
