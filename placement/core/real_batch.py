"""A batch of the core as a trace, a cluster and faults of the scheduler's simulator."""

from __future__ import annotations

import math

from presage.features.hazard.outage import Outage
from presage.placement.core.batches import Batches
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.faults.fault import Fault, outages_to_faults
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.failures.hazards import FixedHazards
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation

_MEMORY_BYTES = 80 * 2**30


def real_simulation(
    batches: Batches, b: int, policy: Policy, hazards: HazardForecaster | None = None
) -> Simulation:
    """Return a simulation of a batch on nodes of one GPU each, ready to run."""
    cluster = real_cluster(batches.hazard_per_s.shape[1])
    jobs = real_jobs(batches, b)
    durations = {job.job_id: float(s) for job, s in zip(jobs, batches.runtime_s[b], strict=True)}
    ground_truth = TraceDurations(durations)
    return Simulation(
        cluster, policy, Oracle(ground_truth, cluster), ground_truth, jobs,
        faults=real_faults(batches, b), hazards=hazards,
    )  # fmt: skip


def real_cluster(gpus: int) -> Cluster:
    """Return a cluster of nodes with one GPU each."""
    return Cluster(tuple(Node(f"n{i}", 1, "h100", _MEMORY_BYTES) for i in range(gpus)))


def real_jobs(batches: Batches, b: int) -> list[Job]:
    """Return the jobs of a batch, by number."""
    return [
        Job(
            f"{j}",
            float(batches.submit_s[b, j]),
            gpus=int(batches.gpus[b, j]),
            checkpointing=Checkpointing(
                float(batches.interval_s[b, j]),
                float(batches.cost_s[b, j]),
                float(batches.restart_s[b, j]),
            ),
        )
        for j in range(batches.gpus.shape[1])
    ]


def real_faults(batches: Batches, b: int) -> tuple[Fault, ...]:
    """Return the failures and repairs of a batch, by time."""
    return outages_to_faults(
        Outage(gpu, fails_s, repaired_s)
        for gpu in range(batches.fails_s.shape[1])
        for fails_s, repaired_s in zip(
            batches.fails_s[b, gpu].tolist(), batches.repaired_s[b, gpu].tolist(), strict=True
        )
        if fails_s < math.inf
    )


def known_hazards(batches: Batches, b: int) -> FixedHazards:
    """Return the failure rates of a batch as policies know them."""
    return FixedHazards(batches.hazard_per_s[b])
