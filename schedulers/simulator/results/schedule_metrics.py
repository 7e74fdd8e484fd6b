"""Metrics of a simulated schedule: completion times, fairness, utilization, SLO violations."""

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
    """Metrics of a simulated trace; times in seconds, None if no job finished.

    Attributes
    ----------
    jobs, failed, rejected, starved : int
        Number of jobs that finished, ran out of memory too often, could never run, and were still
        pending at the end.
    average_jct_s, median_jct_s, p99_jct_s : float
        Job completion time, from submission to the end.
    makespan_s : float
        Time from the first submission to the last end.
    average_queue_s : float
        Queuing time of a job, before its first start and after preemptions.
    average_slowdown : float
        Device-seconds that a job held, over those of an exclusive, uninterrupted run on all
        devices that it requests.
    p99_unfairness, unfair_fraction : float
        99th percentile of the finish-time fairness, and the fraction of jobs above 1. Finish-time
        fairness is a job's completion time over that on its fair share of the cluster: its
        exclusive run time times the contention. Contention is the number of requested devices over
        the number of devices, at least 1, averaged over the job's time in the system.
    device_utilization : float
        Fraction of all devices' time, over the makespan, with a job on the device.
    preemptions, restarts, overflows : int
        Number of preemptions by the policy, of starts after the first one (after a preemption, a
        node failure or an out-of-memory error), and of out-of-memory errors.
    lost_gpu_hours : float
        Device-hours in which jobs did work that failures undid, or restarted.
    effective_training_time_ratio : float or None
        Exclusive, uninterrupted device-time of the finished jobs over the device-time that they
        held: 1 without failures, checkpoints, restarts and slowdowns.
    memory_exceeded_rate : float or None
        Fraction of jobs first allocated a part of a device's memory that took more: to compare with
        the risk of the memory bound. None if no job was allocated a part.
    slo_violation_rate : float or None
        Fraction of finished latency-sensitive jobs with an SLO that violated it. None if no such
        job finished.
    best_effort_queue_s : float or None
        Queuing time of a best-effort job.
    bytes_by_level : mapping of str to float, or None
        Gradient bytes that gangs sent over each level of the topology, innermost first, including
        lost iterations. None if the gradient sizes of all jobs are unknown.

    References
    ----------
    Mahajan et al.: Themis, NSDI 2020; Zheng et al.: Shockwave, NSDI 2023 (finish-time fairness);
    Kokolis et al.: Revisiting Reliability in Large-Scale ML Research Clusters, HPCA 2025
    (effective training time ratio).
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
    unfair_fraction: float | None
    device_utilization: float | None
    preemptions: int
    restarts: int
    overflows: int
    lost_gpu_hours: float
    effective_training_time_ratio: float | None
    memory_exceeded_rate: float | None
    slo_violation_rate: float | None
    best_effort_queue_s: float | None
    bytes_by_level: Mapping[str, float] | None


def compute_metrics(simulation: Simulation) -> Metrics:
    """Return the metrics of a simulation that has been run."""
    results = simulation.results
    finished = [one for one in results if one.phase is Phase.FINISHED]
    counts = {phase: sum(one.phase is phase for one in results) for phase in Phase}
    jct_s = np.array([one.end_s - one.job.submit_s for one in finished])
    queue_s = np.array([one.status.waited_s for one in finished])
    violated = np.array([one.has_violated_slo for one in finished if one.slo_s < math.inf], float)
    best_effort_s = np.array([o.status.waited_s for o in finished if not o.job.latency_sensitive])
    makespan_s = _makespan_s(results)
    devices = simulation.ledger.cluster.devices
    unfairness = _unfairness(results, finished, devices)
    partial = simulation.partial_memory_starts
    return Metrics(
        jobs=len(finished),
        failed=counts[Phase.FAILED],
        rejected=counts[Phase.REJECTED],
        starved=len(simulation.ledger.jobs) - len(results),
        average_jct_s=_mean(jct_s),
        median_jct_s=_percentile(jct_s, 50),
        p99_jct_s=_percentile(jct_s, 99),
        makespan_s=makespan_s,
        average_queue_s=_mean(queue_s),
        average_slowdown=_mean(_slowdowns(finished)),
        p99_unfairness=_percentile(unfairness, 99),
        unfair_fraction=_mean(unfairness > 1 + 1e-9),
        device_utilization=simulation.busy_s / (makespan_s * devices) if makespan_s else None,
        preemptions=simulation.preemptions,
        restarts=sum(max(0, one.status.starts - 1) for one in results),
        overflows=sum(one.status.overflows for one in results),
        lost_gpu_hours=simulation.lost_device_s / 3600,
        effective_training_time_ratio=_training_time_ratio(finished),
        memory_exceeded_rate=simulation.memory_exceeded / partial if partial else None,
        slo_violation_rate=_mean(violated),
        best_effort_queue_s=_mean(best_effort_s),
        bytes_by_level=bytes_by_level(simulation.gang_runs, simulation.ledger.cluster.topology),
    )


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(np.mean(values)) if len(values) else None  # type: ignore[arg-type]


def _percentile(values: NDArray[np.float64], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _makespan_s(results: Sequence[JobResult]) -> float | None:
    started = [one for one in results if one.first_start_s is not None]
    if not started:
        return None
    return max(one.end_s for one in started) - min(one.job.submit_s for one in started)


def _slowdowns(finished: Sequence[JobResult]) -> NDArray[np.float64]:
    """Return the slowdowns of jobs with a solo run time above 0."""
    attained_s = np.array([one.status.attained_s / one.job.gpus for one in finished])
    solo_s = np.array([one.solo_s for one in finished])
    slowdowns: NDArray[np.float64] = attained_s[solo_s > 0] / solo_s[solo_s > 0]
    return slowdowns


def _training_time_ratio(finished: Sequence[JobResult]) -> float | None:
    """Return the solo device-time of finished jobs over the device-time that they held."""
    attained_s = sum(one.status.attained_s for one in finished)
    return sum(one.solo_s * one.job.gpus for one in finished) / attained_s if attained_s else None


def _unfairness(
    results: Sequence[JobResult], finished: Sequence[JobResult], devices: int
) -> NDArray[np.float64]:
    """Return the finish-time fairness of finished jobs with a run time above 0."""
    admitted = [one for one in results if one.phase is not Phase.REJECTED]
    if not admitted:
        return np.zeros(0)
    at_s = np.array([[one.job.submit_s for one in admitted], [one.end_s for one in admitted]])
    gpus = np.array([one.job.gpus for one in admitted])
    moments, index = np.unique(at_s, return_inverse=True)
    change = np.bincount(index.ravel(), np.concatenate([gpus, -gpus]), len(moments))
    demand = np.maximum(1.0, change.cumsum() / devices)  # from each moment to the next
    integral = np.concatenate([[0.0], (demand[:-1] * np.diff(moments)).cumsum()])
    submit_s = np.array([one.job.submit_s for one in finished])
    end_s = np.array([one.end_s for one in finished])
    solo_s = np.array([one.solo_s for one in finished])
    positive = (end_s > submit_s) & (solo_s > 0)
    jct_s = (end_s - submit_s)[positive]
    first, last = (np.searchsorted(moments, s[positive]) for s in (submit_s, end_s))
    contention = (integral[last] - integral[first]) / jct_s
    unfairness: NDArray[np.float64] = jct_s / (solo_s[positive] * contention)
    return unfairness
