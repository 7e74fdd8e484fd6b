"""Scenario of a cluster with different jobs, while its controller may be killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import LiveCluster

ENDS = {
    "long": pb.FINISHED,
    "keeps": pb.FINISHED,
    "urgent": pb.FINISHED,
    "again": pb.FINISHED,
    "fails": pb.FAILED,
    "unwanted": pb.CANCELLED,
    "stopped": pb.CANCELLED,
}


@contextmanager
def restarted(cluster: LiveCluster, commands: Iterator[Sequence[object]]) -> Iterator[list[int]]:
    """Restart the controller whenever it ends; return its exit statuses."""
    ends: list[int] = []
    over = threading.Event()

    def keep() -> None:
        process = cluster.controller(by=next(commands))
        while not over.wait(0.02):
            if (code := process.poll()) is not None:
                ends.append(code)
                process = cluster.controller(by=next(commands))

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield ends
    finally:
        over.set()
        thread.join()


def play(cluster: LiveCluster) -> None:
    """Run jobs on two nodes that save, are evicted, cancelled, fail and are drained, to their end.

    Each step is retried until the controller accepts it, like a user would.
    """
    cluster.submit(
        cluster.job("long", 60, 0.05, 10),
        cluster.job("keeps", 60, 0.05),
        cluster.job("unwanted", 100_000),
    )
    cluster.cancel("unwanted")
    cluster.runs("long")
    cluster.runs("keeps")
    cluster.submit(cluster.job("urgent", 10, 0.05, latency_sensitive=True))
    cluster.submit(
        cluster.job("again", 10, 0.05, 0, "fails", retries=1),
        cluster.job("fails", 10, 0.05, 0, "breaks"),
        cluster.job("stopped", 100_000, 0.05),
    )
    cluster.runs("urgent")
    cluster.drain("n1", evict=True)
    cluster.over("urgent")
    cluster.drain("n1", undo=True)
    cluster.runs("stopped")
    cluster.cancel("stopped")
    cluster.over(*ENDS)


def check(cluster: LiveCluster) -> None:
    """Check the results of the scenario."""
    assert cluster.phases() == ENDS
    cluster.check()
    failed = [line.job for line in cluster.lines() if line.what == "failed"]
    # A job that fails during its eviction is not counted as failed, and runs again.
    assert Counter(failed) - Counter(fails=len(failed)) == {"again": 1}
