"""Recent AllReduces of all jobs, as their ranks report them; old ones are dropped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.ranks.rank_entry import MAX_SIZE_BYTES
from presage.collectives.core.view import Reason
from presage.collectives.v1 import arbiter_pb2 as pb

MOST_ROWS = 4096  # of a job
MOST_JOBS = 512
MOST_DECISIONS = 512  # of a report
MOST_DRAWN = 40_000  # of a time line
_REASONS, _WAYS = frozenset(Reason), frozenset(pb.Way.values())


class Row(NamedTuple):
    """AllReduce of a job; ``start_s`` is by the clock of the arbiter."""

    job: str
    switches: tuple[str, ...]
    number: int
    start_s: float
    duration_s: float
    size_bytes: int
    reason: Reason
    way: int


class RecentDecisions:
    """The newest AllReduces of each job, by the reports of its lowest reporting rank."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[Row]] = {}
        self._newest: dict[str, int] = {}

    def add(
        self, job: Job, rank: int, decisions: Sequence[pb.Decision], now_s: float
    ) -> Sequence[Row]:
        """Add decisions of a report, and return the new rows; other ranks' ones are skipped."""
        connected = [n for n, entry in job.ranks.items() if entry.gone_s is None]
        if not decisions or rank != min(connected, default=-1):
            return ()
        if job.name not in self._rows and len(self._rows) >= MOST_JOBS:
            return ()
        rows = self._rows.setdefault(job.name, deque(maxlen=MOST_ROWS))
        newest, added = self._newest.get(job.name, -1), []
        for one in decisions[:MOST_DECISIONS]:
            times = one.age_s, one.duration_s
            if not all(math.isfinite(t) and 0 <= t < 1e6 for t in times):
                continue
            if one.reason not in _REASONS or one.way not in _WAYS or one.number <= newest:
                continue
            if one.size_bytes > MAX_SIZE_BYTES:
                continue
            start_s = now_s - one.age_s
            added.append(
                Row(job.name, job.switches, one.number, start_s, one.duration_s, one.size_bytes,
                    Reason(one.reason), one.way)
            )  # fmt: skip
            newest = one.number
        self._newest[job.name] = newest
        rows.extend(added)
        return added

    def forget(self, jobs: Iterable[str], before_s: float) -> None:
        """Forget jobs other than these, once they have no row after a time."""
        known = set(jobs)
        for name in [name for name in self._rows if name not in known]:
            rows = self._rows[name]
            if not rows or rows[-1].start_s < before_s:
                del self._rows[name]
                self._newest.pop(name, None)

    def restart(self, job: str) -> None:
        """Accept lower numbers: another job has the name."""
        self._newest.pop(job, None)

    def of_job(self, job: str) -> Sequence[Row]:
        """Return the AllReduces of a job, the newest last."""
        return tuple(self._rows.get(job, ()))

    def all_rows(self) -> list[tuple[Row, ...]]:
        """Return a copy of the AllReduces of each job, which another thread may read."""
        return [tuple(rows) for rows in self._rows.values()]


def newest_rows(
    of_jobs: Iterable[Sequence[Row]], last_s: float, now_s: float, most: int = MOST_DRAWN
) -> list[Row]:
    """Return the newest AllReduces of the last seconds by their start; 0 for all times."""
    since_s = now_s - last_s if last_s > 0 else -math.inf
    found = [row for rows in of_jobs for row in rows if row.start_s >= since_s]
    return sorted(found, key=lambda row: (row.start_s, row.job))[-most:]
