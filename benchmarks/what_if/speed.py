"""Cost of a question: simulations of a large cluster, and time under the controller's lock."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from random import Random
from typing import Any

from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.what_if.future_processes import PROCESSES
from presage.schedulers.what_if.simulated_past import simulated_past
from presage.schedulers.what_if.snapshot import Snapshot, take_snapshot
from presage.schedulers.what_if.what_if import what_if

GPUS, WAITING, SAMPLES, REPEATS = 1_000, 1_000, 25, 3
# Seconds between arrivals of 2.8 GPUs for 3.9 hours in the mean: a load of 90 %, then a burst.
BETWEEN_S, BURST_BETWEEN_S, BURST_FROM, SUBMITTED = 44.0, 1.0, 10_000, 14_000
HORIZON_S = 86_400.0
POLICIES = ("fifo", "backfill", "sjf")


class _Forecaster:
    """Forecaster with an interval around the true run time of each job."""

    def __init__(self, duration_s: dict[str, float]) -> None:
        self._duration_s = duration_s

    def predictions(self, requests: Any) -> list[RuntimePrediction | None]:
        """Return the forecasts of some jobs."""
        return [
            RuntimePrediction(
                self._duration_s[job.job_id], 1000, 0, high_s=1.5 * self._duration_s[job.job_id]
            )
            for job, _ in requests
        ]

    def slowdowns(self, requests: Any) -> list[None]:
        """Return nothing: no jobs share devices."""
        return [None] * len(requests)


def measure_speed() -> list[dict[str, Any]]:
    """Return the cost of a question about all waiting jobs of 1,000 GPUs, by policy and processes.

    ``cpu_s`` is of all processes, ``longest_s`` of the starting process and one of its workers: the
    wall time where each process has a core of its own. Each row is the fastest of ``REPEATS``.
    """
    return [
        min((_measure(policy, processes) for _ in range(REPEATS)), key=lambda row: row["longest_s"])
        for policy in POLICIES
        for processes in (1, PROCESSES)
    ]


def _measure(policy: str, processes: int) -> dict[str, Any]:
    snapshot, forecaster = crowded_cluster(policy)
    gc.collect()
    begin_s, before = time.perf_counter(), os.times()
    answers = what_if(
        snapshot,
        list(snapshot.pending),
        policy=policy,
        forecaster=forecaster,
        samples=SAMPLES,
        horizon_s=HORIZON_S,
        ends=False,
        processes=processes,
    )
    wall_s = time.perf_counter() - begin_s
    for worker in multiprocessing.active_children():
        worker.join()
    after = os.times()
    own_s = after.user + after.system - before.user - before.system
    workers_s = (
        after.children_user + after.children_system
        - before.children_user - before.children_system
    )  # fmt: skip
    return {
        "policy": policy,
        "processes": processes,
        "jobs": len(answers),
        "running": len(snapshot.active),
        "samples": SAMPLES,
        "wall_s": wall_s,
        "cpu_s": own_s + workers_s,
        "longest_s": own_s + workers_s / processes,
        "load": os.getloadavg()[0],
    }


def crowded_cluster(policy: str) -> tuple[Snapshot, _Forecaster]:
    """Return 1,000 GPUs at 90 % load for days, once 1,000 jobs wait after a burst."""
    rng = Random(0)
    cluster = Cluster(tuple(Node(f"n{i}", 8, "h100", 80 * 2**30) for i in range(GPUS // 8)))
    jobs = list[Job]()
    duration_s: dict[str, float] = {}
    at_s = 0.0
    for i in range(SUBMITTED):
        at_s += rng.expovariate(1 / (BETWEEN_S if i < BURST_FROM else BURST_BETWEEN_S))
        gpus = rng.choice((1, 1, 1, 2, 4, 8))
        jobs.append(Job(f"j{i}", at_s, gpus=gpus, model=f"m{rng.randrange(50)}"))
        duration_s[f"j{i}"] = 600.0 + rng.lognormvariate(9.0, 1.0)
    forecaster = _Forecaster(duration_s)
    made = policy_of(policy)
    simulation = Simulation(cluster, made, forecaster, TraceDurations(duration_s), jobs)
    for state in simulation.moments():
        simulation.take(list(made.decide(state, simulation.forecasts, rng)))
        if len(state.pending) >= WAITING:
            break
    return take_snapshot(state, past=simulated_past(simulation.results)), forecaster
