"""Prediction of iteration times of live jobs from their measured phases."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call
from presage.collectives.simulation.compare import REFERENCE, RULES, run_rules
from presage.collectives.simulation.phased_job import COSTS, PhasedJob, Way
from presage.collectives.simulation.simulate import Outcome


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """AllReduce of a live job, as one of its ranks measured it on a monotonic clock.

    Attributes
    ----------
    queued_s : float
        Time at which the job asked for it.
    start_s, end_s : float
        Times at which it was started and was complete.
    size_bytes : int
        Size of the tensor.
    """

    queued_s: float
    start_s: float
    end_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """Live job, measured while it ran without contention.

    Attributes
    ----------
    job_id : str
        Unique id.
    ranks : int
        Number of ranks.
    switches : tuple of str
        Switches that it is to use.
    iterations : sequence of sequence of MeasuredCall
        At least three iterations with the same AllReduces, all by ``way``. The first one may have
        been longer: only its end counts.
    way : Way
        Way of all measured AllReduces.
    inc_s : sequence of float, optional
        Durations of the AllReduces of an iteration on the switch, if measured; else those of I9.
    """

    job_id: str
    ranks: int
    switches: tuple[str, ...]
    iterations: Sequence[Sequence[MeasuredCall]]
    way: Way = Way.RING
    inc_s: Sequence[float] | None = None


def predict_jobs(
    jobs: Sequence[MeasuredJob],
    switches: Mapping[str, int],
    link: Link,
    *,
    rules: Sequence[str] = (*RULES, REFERENCE),
    duration_s: float = 60.0,
    options: ArbiterOptions | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Outcome]]:
    """Predict the iterations of live jobs that share switches, under each rule.

    Parameters
    ----------
    jobs : sequence of MeasuredJob
        Jobs with the phases that were measured.
    switches : mapping of str to int
        Slots by switch.
    link : Link
        Slowest link between the ranks of each job.
    rules : sequence of str
        Rules, see ``compare.RULES``.
    duration_s : float
        Simulated time.
    options : ArbiterOptions, optional
        Options of the arbiter.
    seed : int
        Random seed of jitter.

    Returns
    -------
    dict of str to dict of str to Outcome
        By rule and job.

    Raises
    ------
    ValueError
        Measurements are fewer than three iterations, differ in their AllReduces, or are not in
        order.
    """
    phased = [phased_job(job, link) for job in jobs]
    return run_rules(phased, switches, rules, duration_s=duration_s, options=options, seed=seed)


def phased_job(job: MeasuredJob, link: Link) -> PhasedJob:
    """Return the simulated job with the medians and the jitter of a measured one.

    An AllReduce is ready at the median time from the end of the previous iteration until it was
    queued. Durations have the ratio of the measured ones to those of I9.
    """
    sizes = [[call.size_bytes for call in calls] for calls in job.iterations]
    if len(sizes) < 3 or any(size != sizes[-1] for size in sizes):
        raise ValueError(f"job {job.job_id!r}: needs three iterations with the same AllReduces")
    pairs = list(itertools.pairwise(job.iterations))
    offsets_s = [[call.queued_s - before[-1].end_s for call in calls] for before, calls in pairs]
    ready_s = [statistics.median(at_s) for at_s in zip(*offsets_s, strict=True)]
    ready_s = list(itertools.accumulate((max(0.0, at_s) for at_s in ready_s), max))
    cost_s = [COSTS[job.way](job.ranks, size, link) for size in sizes[-1]]
    inc_s = [COSTS[Way.INC](job.ranks, size, link) for size in sizes[-1]]
    measured_s: list[float] = [
        statistics.median(call.end_s - call.start_s for call in calls)
        for calls in zip(*(calls for _, calls in pairs), strict=True)
    ]
    factors: list[tuple[Way, float]] = []
    if sum(cost_s) > 0:
        factors.append((job.way, sum(measured_s) / sum(cost_s)))
    if job.inc_s is not None and sum(inc_s) > 0:
        factors.append((Way.INC, sum(job.inc_s) / sum(inc_s)))
    lasts_s = [calls[-1] for calls in offsets_s]
    return PhasedJob(
        job_id=job.job_id,
        ranks=job.ranks,
        switches=job.switches,
        link=link,
        calls=tuple(Call(at_s, size) for at_s, size in zip(ready_s, sizes[-1], strict=True)),
        start_s=0.0,
        jitter=statistics.stdev(lasts_s) / statistics.mean(lasts_s) if ready_s[-1] > 0 else 0.0,
        measured_over_cost=tuple(factors),
    )
