"""Delays of a live run that a simulation needs: start of workers, growth, end of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import mean
from typing import Any, NamedTuple

LiveJobs = Mapping[str, Mapping[str, Any]]  # outcomes of run_live, by job
_BY_WORKER_END = "worker m"  # reason of a size because a worker ended: no decision


class Change(NamedTuple):
    """Decided number of devices of a job, from a time on."""

    unix_s: float
    gpus: int


def decided_sizes(one: Mapping[str, Any]) -> list[Change]:
    """Return the decided sizes of a job, the last of them 0 at its end.

    Workers of a job that ends leave one after the other; the sizes in between were not decided.
    """
    return [
        Change(unix_s, gpus)
        for unix_s, gpus, reason in one["sizes"]
        if not reason.startswith(_BY_WORKER_END)
    ]


def start_delays_s(live: LiveJobs) -> list[float]:
    """Return the time from each start of a job to its first step there."""
    return [delay for before, _, delay in _delays(live) if not before]


def growth_delays_s(live: LiveJobs) -> list[float]:
    """Return the time from each decided growth to the first step of the larger size."""
    return [delay for before, after, delay in _delays(live) if 0 < before < after]


def end_delays_s(live: LiveJobs) -> list[float]:
    """Return the time from the last step of each job to its end."""
    return [one["ended_unix_s"] - one["generations"][-1]["unix_s"] for one in live.values()]


def mean_startup_s(live: LiveJobs) -> float:
    """Return the mean time that new workers need before their first step."""
    return mean([*start_delays_s(live), *growth_delays_s(live)])


def _delays(live: LiveJobs) -> Iterator[tuple[int, int, float]]:
    """Yield both sizes and the delay of each change that became effective before the next one."""
    for one in live.values():
        changes = decided_sizes(one)
        before = 0
        for change, following in pairwise(changes):
            first = next(
                (
                    row["unix_s"]
                    for row in one["generations"]
                    if change.unix_s < row["unix_s"] < following.unix_s
                    and row["size"][0] == change.gpus
                ),
                None,
            )
            if first is not None:
                yield before, change.gpus, first - change.unix_s
            before = change.gpus
