"""Waiting times and shares of the users of a simulated trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.schedulers.core.job_status import WAITING, Phase
from presage.schedulers.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class UserMetrics:
    """Metrics of the jobs of a user that were not rejected.

    Attributes
    ----------
    jobs : int
        Number of jobs.
    average_wait_s, longest_wait_s : float
        Time for which a job waits, before its first start and after preemptions; up to the end of
        the simulation for a job that still waits.
    device_share : float
        Fraction of the device-seconds of all jobs.
    """

    jobs: int
    average_wait_s: float
    longest_wait_s: float
    device_share: float


def compute_user_metrics(simulation: Simulation) -> Mapping[str, UserMetrics]:
    """Return the metrics of each user, by name, of a simulation that has been run."""
    ledger, entries = simulation.ledger, simulation.log.entries
    last_s = entries[-1][0] if entries else 0.0
    waits_s: dict[str, list[float]] = {}
    device_s: dict[str, float] = {}
    for job in ledger.jobs.values():
        status = ledger.status(job.job_id)
        if status.phase is Phase.REJECTED:
            continue
        waiting_s = last_s - status.since_s if status.phase in WAITING else 0.0
        waits_s.setdefault(job.user, []).append(status.waited_s + waiting_s)
        device_s[job.user] = device_s.get(job.user, 0.0) + status.attained_at(last_s)
    total_s = sum(device_s.values())
    return {
        user: UserMetrics(
            len(waits), sum(waits) / len(waits), max(waits),
            device_s[user] / total_s if total_s else 0.0,
        )
        for user, waits in sorted(waits_s.items())
    }  # fmt: skip
