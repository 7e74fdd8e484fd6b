"""What a schedule was worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.simulation import JobResult, Simulation
from presage.schedulers.simulator.traffic import bytes_by_level


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
    average_slowdown : float
        Device-seconds that a job held, over those that it takes alone, on all devices that it asks
        for and without an interruption.
    p99_unfairness, unfair_share : float
        Finish-time fairness: a job's completion time over that on its part of the cluster, where
        it would take as much longer than alone as devices were asked for, on average while it was
        there, over those that there are; at least 1. Of this the 99th percentile, and the part of
        jobs that took longer than that.
    device_use : float
        Part of all devices' time, over the makespan, that somebody was on them.
    preemptions, restarts, overflows : int
        How often a policy took a job's devices; a job was started again, after that or after its
        node failed or it ran out of memory; and ran out of memory.
    exceeded_share : float or None
        Of jobs that were first granted a part of a device's memory, those that took more:
        what a bound's risk promises. None where no job was granted a part.
    late_share : float or None
        Of latency-sensitive jobs that finished and were promised a run time, those that took
        longer from their first start to their end. None where there are none.
    best_effort_queue_s : float or None
        Time that a best-effort job waited.
    bytes_by_level : mapping of str to float, or None
        Gradients that gangs sent over each level of the topology, innermost first, also those of
        iterations that were lost. None where nobody's gradients are known.

    References
    ----------
    Mahajan et al.: Themis, NSDI 2020; Zheng et al.: Shockwave, NSDI 2023 (finish-time fairness).
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
    average_slowdown: float | None
    p99_unfairness: float | None
    unfair_share: float | None
    device_use: float | None
    preemptions: int
    restarts: int
    overflows: int
    exceeded_share: float | None
    late_share: float | None
    best_effort_queue_s: float | None
    bytes_by_level: Mapping[str, float] | None


def metrics_of(done: Simulation) -> Metrics:
    """Of a simulation that came to its end."""
    finished = [one for one in done.ended if one.phase is Phase.FINISHED]
    counted = {phase: sum(one.phase is phase for one in done.ended) for phase in Phase}
    jct_s = np.array([one.end_s - one.job.submit_s for one in finished])
    queue_s = np.array([one.status.waited_s for one in finished])
    late = np.array([one.violated for one in finished if one.promised_s < math.inf], float)
    waited_s = np.array([o.status.waited_s for o in finished if not o.job.latency_sensitive])
    makespan_s = _makespan_s(done.ended)
    devices = done.ledger.cluster.devices
    unfairness = _unfairness(done.ended, finished, devices)
    return Metrics(
        jobs=len(finished),
        failed=counted[Phase.FAILED],
        rejected=counted[Phase.REJECTED],
        starved=len(done.ledger.jobs) - len(done.ended),
        average_jct_s=_mean(jct_s),
        median_jct_s=_percentile(jct_s, 50),
        p99_jct_s=_percentile(jct_s, 99),
        makespan_s=makespan_s,
        average_queue_s=_mean(queue_s),
        average_slowdown=_mean(_slowdowns(finished)),
        p99_unfairness=_percentile(unfairness, 99),
        unfair_share=_mean(unfairness > 1 + 1e-9),
        device_use=done.busy_s / (makespan_s * devices) if makespan_s else None,
        preemptions=done.preempted,
        restarts=sum(max(0, one.status.starts - 1) for one in done.ended),
        overflows=sum(one.status.overflows for one in done.ended),
        exceeded_share=done.exceeded / done.partly if done.partly else None,
        late_share=_mean(late),
        best_effort_queue_s=_mean(waited_s),
        bytes_by_level=bytes_by_level(done.stays, done.ledger.cluster.topology),
    )


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(np.mean(values)) if len(values) else None  # type: ignore[arg-type]


def _percentile(values: NDArray[np.float64], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _makespan_s(ended: Sequence[JobResult]) -> float | None:
    ran = [one for one in ended if one.first_start_s is not None]
    if not ran:
        return None
    return max(one.end_s for one in ran) - min(one.job.submit_s for one in ran)


def _slowdowns(finished: Sequence[JobResult]) -> NDArray[np.float64]:
    """Of each that takes any time."""
    ran_s = np.array([one.status.attained_s / one.job.gpus for one in finished])
    solo_s = np.array([one.solo_s for one in finished])
    slowdowns: NDArray[np.float64] = ran_s[solo_s > 0] / solo_s[solo_s > 0]
    return slowdowns


def _unfairness(
    ended: Sequence[JobResult], finished: Sequence[JobResult], devices: int
) -> NDArray[np.float64]:
    """Finish-time fairness of each that takes any time."""
    there = [one for one in ended if one.phase is not Phase.REJECTED]
    if not there:
        return np.zeros(0)
    at_s = np.array([[one.job.submit_s for one in there], [one.end_s for one in there]])
    gpus = np.array([one.job.gpus for one in there])
    moments, place = np.unique(at_s, return_inverse=True)
    change = np.bincount(place.ravel(), np.concatenate([gpus, -gpus]), len(moments))
    asked = np.maximum(1.0, change.cumsum() / devices)  # from a moment to the next
    integral = np.concatenate([[0.0], (asked[:-1] * np.diff(moments)).cumsum()])
    submit_s = np.array([one.job.submit_s for one in finished])
    end_s = np.array([one.end_s for one in finished])
    solo_s = np.array([one.solo_s for one in finished])
    some = (end_s > submit_s) & (solo_s > 0)
    jct_s = (end_s - submit_s)[some]
    first, last = (np.searchsorted(moments, s[some]) for s in (submit_s, end_s))
    contention = (integral[last] - integral[first]) / jct_s
    unfairness: NDArray[np.float64] = jct_s / (solo_s[some] * contention)
    return unfairness
