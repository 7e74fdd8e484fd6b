"""Simulations of benchmarks/failures_live: the same jobs, arrivals and outages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.failures_live.live import detection_of
from benchmarks.failures_live.outcome import Outcome, Transition, make_attempts
from benchmarks.failures_live.trace import KIND, MODEL, Plan, cluster, node_name
from presage.features.hazard.outage import Outage
from presage.schedulers.core.job import Job
from presage.schedulers.faults.detection import Detection
from presage.schedulers.faults.fault import outages_to_faults
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.model_measurements import read_measurements
from presage.schedulers.simulator.simulation import Simulation

DETECTION = detection_of()


def run_simulated(
    plan: Plan,
    policy: str,
    tables: Path,
    *,
    submit_s: Mapping[str, float] | None = None,
    overhead_s: float = 0.0,
    rejoin_s: float = 0.0,
    detection: Detection | None = DETECTION,
) -> Outcome:
    """Return the outcome of a plan in the simulator.

    Parameters
    ----------
    submit_s : mapping of str to float, optional
        When each job was submitted in the live run; by default as planned.
    overhead_s : float
        Time that a job needs in addition to its steps.
    rejoin_s : float
        Time from the start of an agent until its node gets jobs.
    detection : Detection or None
        When failures are known; None for at once.
    """
    outages = [one._replace(until_s=one.until_s + rejoin_s) for one in plan.outages]
    measured = read_measurements(tables)
    run_s = {job.job_id: job.run_s + overhead_s for job in plan.jobs}
    at_s = submit_s or {job.job_id: job.after_s for job in plan.jobs}
    jobs = [
        Job(job.job_id, at_s[job.job_id], model=MODEL, iterations=job.iterations)
        for job in plan.jobs
    ]
    done = Simulation(
        cluster(len(plan.rates)), policy_of(policy), Table(measured),
        MeasuredTruth(run_s, measured, KIND), sorted(jobs, key=lambda job: job.submit_s),
        faults=outages_to_faults(outages), earlier_outages=plan.history, detection=detection,
    )  # fmt: skip
    done.run()
    return Outcome(
        {one.job.job_id: one.end_s - one.job.submit_s for one in done.results},
        max(one.end_s for one in done.results) - min(at_s.values()),
        make_attempts(_transitions(done), _spans(outages)),
        _spans(outages),
    )


def _transitions(done: Simulation) -> list[Transition]:
    found = []
    for at_s, event, job_id, details in done.log.entries:
        if event == "start":
            found.append(Transition(at_s, job_id, node_name(details[0].device)))
        elif event in ("lost", "finish"):
            found.append(Transition(at_s, job_id, "", is_lost=event == "lost"))
    return found


def _spans(outages: Sequence[Outage]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for one in outages:
        found.setdefault(node_name(one.node), []).append((one.from_s, one.until_s))
    return found
