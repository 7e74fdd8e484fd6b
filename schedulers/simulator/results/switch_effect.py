"""Effect of switches with in-network computing on a simulated schedule."""

from __future__ import annotations

from dataclasses import dataclass

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class SwitchEffect:
    """Comparison of two simulations of a policy, with AllReduce by ring only and with switches.

    Attributes
    ----------
    jobs : int
        Jobs that ran on several nodes with a switch and known AllReduces.
    ring_jct_s, switch_jct_s : float or None
        Mean job completion time of the jobs that finished in both.
    worst_job : str or None
        Job whose completion time rises most, or falls least.
    worst_ratio : float or None
        Its completion time with switches over that by ring.
    """

    jobs: int
    ring_jct_s: float | None
    switch_jct_s: float | None
    worst_job: str | None
    worst_ratio: float | None


def switch_effect(ring: Simulation, switch: Simulation) -> SwitchEffect:
    """Return what switches change in a schedule."""
    before, after = _jct_s(ring), _jct_s(switch)
    both = [job_id for job_id in before if job_id in after]
    jobs = len(switch.jobs_on_switches)
    if not both:
        return SwitchEffect(jobs, None, None, None, None)
    ratios = {job_id: after[job_id] / before[job_id] for job_id in both if before[job_id] > 0}
    worst = max(ratios, key=lambda job_id: ratios[job_id], default=None)
    return SwitchEffect(
        jobs=jobs,
        ring_jct_s=sum(before[job_id] for job_id in both) / len(both),
        switch_jct_s=sum(after[job_id] for job_id in both) / len(both),
        worst_job=worst,
        worst_ratio=None if worst is None else ratios[worst],
    )


def _jct_s(simulation: Simulation) -> dict[str, float]:
    """Return the completion time of each finished job."""
    return {
        result.job.job_id: result.end_s - result.job.submit_s
        for result in simulation.results
        if result.phase is Phase.FINISHED
    }
