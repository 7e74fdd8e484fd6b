"""Clusters and jobs that tests are short with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.simulator.ground_truth.ground_truth import GroundTruth, TraceDurations
from presage.schedulers.simulator.simulation import Simulation

GIB = 2**30


def cluster(*devices: int, kind: str = "v100", memory_bytes: int = 16 * GIB) -> Cluster:
    """Return nodes n0, n1, ... with so many devices each."""
    return Cluster(
        tuple(Node(f"n{i}", count, kind, memory_bytes) for i, count in enumerate(devices))
    )


def job(job_id: str, submit_s: float = 0.0, **values: Any) -> Job:
    """Return a job of one device by default."""
    return Job(job_id, submit_s, **values)


def simulated(
    devices: Cluster,
    policy: Policy,
    jobs: Sequence[Job],
    ground_truth: GroundTruth | Mapping[str, float],
    *,
    forecaster: Forecaster | None = None,
    **options: Any,
) -> Simulation:
    """Return a finished simulation; by default forecasts are exact."""
    world = TraceDurations(ground_truth) if isinstance(ground_truth, Mapping) else ground_truth
    simulation = Simulation(
        devices, policy, forecaster or Oracle(world, devices), world, jobs, **options
    )
    simulation.run()
    return simulation
