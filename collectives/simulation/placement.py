"""Placement of jobs on switch domains by their predicted communication."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from presage.collectives.simulation.bounds import largest_gain
from presage.collectives.simulation.phased_job import PhasedJob, Way

Placement = Mapping[str, Sequence[PhasedJob]]  # jobs by switch


def placements(
    jobs: Sequence[PhasedJob], switches: Sequence[str], jobs_each: int
) -> Iterator[Placement]:
    """Yield all ways to place jobs on equal switches, ``jobs_each`` on each."""
    if len(jobs) != jobs_each * len(switches):
        raise ValueError(f"{len(jobs)} jobs, {len(switches)} switches of {jobs_each} jobs")
    name, *others = switches
    if not others:
        yield {name: [replace(job, switches=(name,)) for job in jobs]}
        return
    # The first job is on the first switch: switches are equal.
    for chosen in itertools.combinations(jobs[1:], jobs_each - 1):
        here = [jobs[0], *chosen]
        left = [job for job in jobs if job not in here]
        for rest in placements(left, others, jobs_each):
            yield {name: [replace(job, switches=(name,)) for job in here], **rest}


def predicted_gain(placement: Placement, slots: int = 1) -> float:
    """Return the sum of the largest gains of the jobs of all switches."""
    return sum(len(jobs) * (largest_gain(jobs, slots) - 1) for jobs in placement.values())


def largest_load(placement: Placement) -> float:
    """Return the largest demand of a switch: the share of time that its jobs would occupy it."""
    return max(sum(inc_load(job) for job in jobs) for jobs in placement.values())


def inc_load(job: PhasedJob) -> float:
    """Return the share of time that a job occupies a switch which it has for itself."""
    occupied_s = sum(job.duration_s(Way.INC, position) for position in range(len(job.calls)))
    return occupied_s / job.solo_s(Way.INC)


def best_placement(
    jobs: Sequence[PhasedJob],
    switches: Sequence[str],
    jobs_each: int,
    score: Callable[[Placement], float] = predicted_gain,
) -> Placement:
    """Return the placement with the highest score; of equal ones the first."""
    return max(placements(jobs, switches, jobs_each), key=score)
