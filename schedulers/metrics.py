"""What a schedule was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from presage.schedulers.simulator import Ended, Simulation
from presage.schedulers.standing import Phase


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of a simulated trace; times in seconds, and None where no job finished.

    Attributes
    ----------
    jobs : int
        That finished; ``failed`` ran out of memory too often, ``rejected`` could never run, and
        ``starved`` were never started, or not again.
    average_jct_s, median_jct_s, p99_jct_s : float
        Job completion time: from submission to the end.
    makespan_s : float
        From the first submission to the last end.
    average_queue_s : float
        Time that a job waited, before its first start and after preemptions.
    device_use : float
        Part of all devices' time that jobs held, over the makespan.
    preemptions, overflows : int
        How often a job was started again, and ran out of memory.
    """

    jobs: int
    failed: int
    rejected: int
    starved: int
    average_jct_s: float | None
    median_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    average_queue_s: float | None
    device_use: float | None
    preemptions: int
    overflows: int


def metrics_of(done: Simulation) -> Metrics:
    """Of a simulation that came to its end."""
    finished = [one for one in done.ended if one.phase is Phase.FINISHED]
    counted = {phase: sum(one.phase is phase for one in done.ended) for phase in Phase}
    jct_s = np.array([one.end_s - one.job.submit_s for one in finished])
    makespan_s = _makespan_s(done.ended)
    held_s = sum(one.standing.attained_s for one in done.ended)
    some = bool(finished)
    return Metrics(
        jobs=len(finished),
        failed=counted[Phase.FAILED],
        rejected=counted[Phase.REJECTED],
        starved=len(done.ledger.jobs) - len(done.ended),
        average_jct_s=float(jct_s.mean()) if some else None,
        median_jct_s=float(np.median(jct_s)) if some else None,
        p99_jct_s=float(np.percentile(jct_s, 99)) if some else None,
        makespan_s=makespan_s,
        average_queue_s=(
            float(np.mean([one.standing.waited_s for one in finished])) if some else None
        ),
        device_use=held_s / (makespan_s * done.ledger.cluster.devices) if makespan_s else None,
        preemptions=sum(max(0, one.standing.starts - 1) for one in done.ended),
        overflows=sum(one.standing.overflows for one in done.ended),
    )


def _makespan_s(ended: Sequence[Ended]) -> float | None:
    ran = [one for one in ended if one.first_start_s is not None]
    if not ran:
        return None
    return max(one.end_s for one in ran) - min(one.job.submit_s for one in ran)
