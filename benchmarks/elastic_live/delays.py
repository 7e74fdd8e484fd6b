"""Delays of a live run that a simulation needs: start of workers, growth, end of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from benchmarks.elastic_live.devices import Size

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
    return [one.delay_s for one in _delays(live) if one.former is None]


def growth_delays_s(live: LiveJobs) -> list[float]:
    """Return the time from each decided growth to the first step of the larger size."""
    return [one.delay_s for one in _growths(live)]


def growth_losses_s(live: LiveJobs, steps_s: Mapping[str, Mapping[Size, float]]) -> list[float]:
    """Return the seconds at the new speed that each growth loses because workers have to start.

    Parameters
    ----------
    steps_s : mapping of str to mapping
        Seconds of a step by size, for each job.
    """
    return [
        one.delay_s * (1.0 - steps_s[one.job_id][one.size] / steps_s[one.job_id][one.former])
        for one in _growths(live)
        if one.former is not None
    ]


def end_delays_s(live: LiveJobs) -> list[float]:
    """Return the time from the last step of each job to its end."""
    return [one["ended_unix_s"] - one["generations"][-1]["unix_s"] for one in live.values()]


def median_startup_s(live: LiveJobs) -> float:
    """Return the median time that new workers need before their first step."""
    return median([*start_delays_s(live), *growth_delays_s(live)])


class _Delay(NamedTuple):
    """Time from the decision of a size to its first step; ``former`` is None for a start."""

    job_id: str
    former: Size | None
    size: Size
    delay_s: float


def _growths(live: LiveJobs) -> list[_Delay]:
    return [one for one in _delays(live) if one.former is not None and one.former[0] < one.size[0]]


def _delays(live: LiveJobs) -> Iterator[_Delay]:
    """Yield the delay of each size that became effective before the next one was decided.

    Sizes that were decided while the job started are left out.
    """
    for job_id, one in live.items():
        former: Size | None = None
        is_start = True
        for change, following in pairwise(decided_sizes(one)):
            first = _first_step(one, change, following)
            if first is not None:
                size = (first["size"][0], first["size"][1])
                if is_start or former is not None:
                    yield _Delay(job_id, former, size, first["unix_s"] - change.unix_s)
                former = size
            is_start = not change.gpus
            former = None if is_start else former


def _first_step(
    one: Mapping[str, Any], change: Change, following: Change
) -> Mapping[str, Any] | None:
    """Return the record of the first step with a size; None if there was none."""
    for row in one["generations"]:
        is_between = change.unix_s < row["unix_s"] < following.unix_s
        if is_between and change.gpus and row["size"][0] == change.gpus:
            return row
    return None
