"""A day of a large cluster in the simulator: processor time by simulated time.

Jobs and ground truth are those of benchmarks/sharing, at the same load. The trace has fewer jobs
than a day of a large cluster, so it is repeated.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.forecast_worth.runs import KIND, MEMORY_BYTES
from benchmarks.sharing.runs import DAY_S, day_of_jobs, with_priorities
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.model_measurements import (
    attach_models,
    read_measurements,
)
from presage.schedulers.simulator.simulation import Simulation

DEVICES = 10  # of a node
LOAD, SEED = 1.0, 0
PASS_S = 1.0
ERROR, HIGH = 0.05, 1.25  # of predicted run times, and upper bound over the true run time
PARTS = 144  # of a day, for which times are stored
MOST_S = 7_200.0  # processor time after which the simulation stops


class InexactOracle(Oracle):
    """Forecaster of run times that are a little too long or too short for each kind of job."""

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction]:
        """Return the predictions."""
        return [
            exact._replace(
                runtime_s=exact.runtime_s * (1 + _error(job)), high_s=exact.runtime_s * HIGH
            )
            for exact, (job, _) in zip(super().predictions(requests), requests, strict=True)
        ]


def _error(job: Job) -> float:
    return ERROR if crc32(job.model.encode()) % 2 else -ERROR


def simulate_day(
    nodes: int, lucid: Path, *, most_s: float = MOST_S, pass_s: float = PASS_S
) -> dict[str, Any]:
    """Return the processor times of parts of a day, and counts of what happened.

    Parameters
    ----------
    lucid : Path
        Folder of Lucid's measurements.
    most_s : float
        Processor time after which the simulation stops, in seconds.
    pass_s : float
        Time between two scheduling passes; 0 for a decision at each event.
    """
    gc.disable()  # as a simulation does
    world = read_measurements(lucid)
    trace = attach_models(day_of_jobs(nodes * DEVICES, LOAD, SEED), world, [KIND], seed=SEED)
    jobs = with_priorities(trace.jobs, SEED)
    cluster = Cluster(tuple(Node(f"n{i}", DEVICES, KIND, MEMORY_BYTES) for i in range(nodes)))
    truth = MeasuredTruth(trace.duration_s, world, KIND, shares="caps")
    simulation = Simulation(
        cluster, Sharing(), InexactOracle(truth, cluster), truth, jobs, seed=SEED,
        pass_interval_s=pass_s,
    )  # fmt: skip
    began_s, parts = time.process_time(), list[dict[str, float]]()
    for passes, state in enumerate(simulation.moments(), 1):
        simulation.decide()
        spent_s = time.process_time() - began_s
        if state.now_s >= DAY_S * (len(parts) + 1) / PARTS or spent_s > most_s:
            part = {
                "until_s": state.now_s, "spent_s": spent_s, "passes": passes,
                "ended": len(simulation.results), "running": len(state.running),
                "pending": len(state.pending), "evictions": simulation.preemptions,
            }  # fmt: skip
            parts.append(part)
            print(part, flush=True)
            if state.now_s >= DAY_S or spent_s > most_s:
                break
    return {
        "nodes": nodes,
        "jobs": len(jobs),
        "parts": parts,
        "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
