"""Upper bound of what any rule can gain with the slots of one switch."""

from __future__ import annotations

from collections.abc import Sequence

from presage.collectives.simulation.phased_job import PhasedJob, Way


def largest_gain(jobs: Sequence[PhasedJob], slots: int) -> float:
    """Return a bound of the mean speed of jobs over that without the switch.

    It is the optimum of a linear program. An AllReduce on the switch shortens an iteration by at
    most what it saves, and occupies a slot for its duration. Slots are occupied at most all of the
    time, no job is faster than with the switch for itself, and nothing collides. So no rule
    reaches it in general. Jitter is not considered.
    """
    gains = dict.fromkeys((job.job_id for job in jobs), 0.0)
    items = [(job, position) for job in jobs for position in range(len(job.calls)) if job.switches]

    def per_slot_s(item: tuple[PhasedJob, int]) -> float:
        job, position = item
        occupied_s = job.duration_s(Way.INC, position)
        return _saved_s(job, position) / occupied_s if occupied_s else 0.0

    left = float(slots)
    for job, position in sorted(items, key=per_slot_s, reverse=True):
        saved_s, occupied_s = _saved_s(job, position), job.duration_s(Way.INC, position)
        if saved_s <= 0 or left <= 0:
            continue
        most = job.solo_s(None) / job.solo_s(Way.INC) - 1 - gains[job.job_id]
        # Iterations per second that have this AllReduce on the switch.
        rate = min(1 / job.solo_s(Way.INC), left / occupied_s, max(0.0, most) / saved_s)
        gains[job.job_id] += rate * saved_s
        left -= rate * occupied_s
    return 1 + sum(gains.values()) / len(gains)


def _saved_s(job: PhasedJob, position: int) -> float:
    return job.duration_s(job.without_inc(position), position) - job.duration_s(Way.INC, position)
