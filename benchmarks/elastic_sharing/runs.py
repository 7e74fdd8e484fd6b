"""The simulations of benchmarks/elastic_sharing: traces, loads, forecasts, jobs on a device."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.elastic_simulation.runs import (
    DEVICES_OF_A_NODE,
    ELASTICITY,
    LOADS,
    SEEDS,
    TRACES,
    elastic_job,
    traced,
)
from benchmarks.forecast_worth.runs import KIND, MEMORY_BYTES, SHIPPED, begun_elsewhere
from presage.models.release.release import load_release
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job_status import Phase
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.predicted import Predicted
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.ground_truth.model_measurements import (
    attach_models,
    read_measurements,
)
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.simulation import Simulation
from presage.serving.predictor.predictor import Predictor

Outcome = dict[str, Any]
JOBS_PER_DEVICE = (1, 2)
FORECASTS = ("oracle", "shipped")
USED = ("vc_0e4a51", "Philly ee9e8c")  # the smaller ones of TRACES
SHORT_S = 600.0  # jobs that last less count as this long in their slowdown


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    trace: str
    load: float
    forecast: str
    jobs_per_device: int
    seed: int


RUNS = tuple(
    Run(trace, load, forecast, jobs, seed)
    for trace in USED
    for load in LOADS
    for forecast in FORECASTS
    for jobs in JOBS_PER_DEVICE
    for seed in SEEDS
)


def simulated(run: Run, lucid: Path) -> Outcome:
    """Return the metrics of a simulated schedule."""
    world, (_, _, nodes) = _measured(lucid), TRACES[run.trace]
    cluster = Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, MEMORY_BYTES) for i in range(nodes))
    )
    trace, busy = traced(run.trace)
    factor = run.load * cluster.devices / busy
    trace = attach_models(begun_elsewhere(trace, run.seed), world, [KIND], seed=run.seed)
    sizes = ELASTICITY["elastic"]
    jobs = [elastic_job(job, factor, sizes, cluster.devices) for job in trace.jobs]
    ground_truth = MeasuredTruth(trace.duration_s, world, KIND)
    forecaster: Forecaster = Oracle(ground_truth, cluster)
    if run.forecast == "shipped":
        forecaster = Predicted(_predictor())
    policy = policy_of(f"elastic:jobs_per_device={run.jobs_per_device}")
    done = Simulation(cluster, policy, forecaster, ground_truth, jobs, seed=run.seed)
    began_s = time.process_time()
    done.run()
    events = [event for _, event, _, _ in done.log.entries]
    return asdict(compute_metrics(done)) | {
        "slowdowns": _slowdowns(done),
        "resizes": events.count("resize"),
        "cpu_s": time.process_time() - began_s,
    }


def _slowdowns(done: Simulation) -> dict[str, float]:
    """Return the median, 99th percentile and maximum of completion over run time as requested."""
    found = np.array([
        (one.end_s - one.job.submit_s) / max(one.solo_s, SHORT_S)
        for one in done.results
        if one.phase is Phase.FINISHED
    ])  # fmt: skip
    ranks = {"median": 50, "p99": 99, "worst": 100}
    return {name: float(np.percentile(found, rank)) for name, rank in ranks.items()}


@lru_cache
def _measured(lucid: Path) -> Measurements:
    return read_measurements(lucid)


@lru_cache
def _predictor() -> Predictor:
    return Predictor(load_release(SHIPPED))
