"""Snapshots of simulations that are paused at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from presage.schedulers.core.action import Wake
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.what_if.snapshot import NO_PAST, Past, Snapshot, take_snapshot


class Known:
    """Forecaster with the same forecast for each kind of device, by job id."""

    def __init__(
        self,
        median_s: Mapping[str, float],
        *,
        high: float | None = None,
        foreign: Sequence[str] = (),
        slowdown: float | None = None,
    ) -> None:
        self._median_s, self._high, self._foreign = median_s, high, foreign
        self._slowdown = slowdown

    def predictions(self, requests):
        return [self._prediction(job.job_id) for job, _ in requests]

    def _prediction(self, job_id: str) -> RuntimePrediction | None:
        if job_id not in self._median_s:
            return None
        median_s = self._median_s[job_id]
        high_s = None if self._high is None else median_s * self._high
        is_known = job_id not in self._foreign
        return RuntimePrediction(median_s, 500, 2**30, in_domain=is_known, high_s=high_s)

    def slowdowns(self, requests):
        one = self._slowdown
        return [None if one is None else [one] * len(jobs) for _, jobs in requests]


def paused(
    cluster: Cluster,
    jobs: Sequence[Job],
    duration_s: Mapping[str, float],
    *,
    at_s: float,
    policy: str = "fifo",
    past: Past = NO_PAST,
    forecaster: Forecaster | None = None,
    faults: Any = (),
) -> Snapshot:
    """Return the state at a time of jobs that run for so long."""
    made = policy_of(policy)
    simulation = Simulation(
        cluster, made, forecaster or NoForecasts(), TraceDurations(duration_s), jobs, faults=faults
    )
    rng = Random(0)
    simulation.take([Wake(at_s)])
    state = simulation.observe(0.0).state
    for state in simulation.moments():
        simulation.take(list(made.decide(state, simulation.forecasts, rng)))
        if state.now_s >= at_s:
            break
    state.now_s = at_s
    return take_snapshot(state, past=past)
