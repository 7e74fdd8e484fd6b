"""Simulations of benchmarks/elastic_live: the jobs of a live run, with their arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.elastic_live.delays import LiveJobs, end_delays_s, median_startup_s
from benchmarks.elastic_live.devices import KIND
from benchmarks.elastic_live.trace import POLICY, Curves, Submission, cluster
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.forecasters.forecast_table import Table
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.resize_costs import ResizeCosts
from presage.schedulers.simulator.simulation import Simulation

# The controller uses a speed that was measured for 5 s; heartbeats and requests for the status of
# leaders come on top.
MEASURING_S = 6.5


def run_simulated(
    jobs: Sequence[Submission], curves: Curves, live: LiveJobs, *, is_growth_immediate: bool = False
) -> dict[str, Any]:
    """Return the completion time and the sizes of each job in the simulator.

    Jobs arrive when they were really submitted. Forecasts and ground truth are the curves. Workers
    need the median time of the live run to start, and jobs that to end.

    Parameters
    ----------
    is_growth_immediate : bool
        Whether a larger size takes effect and its speed is known at once, as by the simulator's
        default; the time to start is then a part of each job's run time.
    """
    startup_s, ending_s = median_startup_s(live), median(end_delays_s(live))
    costs = ResizeCosts()
    if not is_growth_immediate:
        costs = ResizeCosts(startup_s=startup_s, measuring_s=MEASURING_S)
    truth = MeasuredTruth(
        {
            one.job_id: curves.run_s(one)
            + ending_s
            + (startup_s if is_growth_immediate or not one.is_elastic else 0.0)
            for one in jobs
        },
        curves.measured,
        KIND,
        scaling="measured",
    )
    submitted = _jobs(jobs, live, startup_s)
    forecaster = Table(curves.measured)
    done = Simulation(
        cluster(), policy_of(POLICY), forecaster, truth, submitted, resize_costs=costs
    )
    done.run()
    return {
        one.job.job_id: {
            "jct_s": one.end_s - one.job.submit_s,
            "sizes": _sizes(done, one.job.job_id, one.end_s),
        }
        for one in done.results
    }


def _jobs(jobs: Sequence[Submission], live: LiveJobs, startup_s: float) -> list[Job]:
    first_unix_s = min(one["submitted_unix_s"] for one in live.values())
    found = [
        Job(
            one.job_id,
            live[one.job_id]["submitted_unix_s"] - first_unix_s,
            gpus=one.gpus,
            min_gpus=1 if one.is_elastic else 0,
            max_gpus=one.most if one.is_elastic else 0,
            model=one.model,
            iterations=one.iterations,
            checkpointing=Checkpointing(restart_s=0.0 if one.is_elastic else startup_s),
        )
        for one in jobs
    ]
    return sorted(found, key=lambda job: job.submit_s)


def _sizes(done: Simulation, job_id: str, end_s: float) -> list[tuple[float, int]]:
    """Return the times and the sizes of a job, the last of them 0 at its end."""
    changes = [
        (time_s, 0 if event == "preempt" else len(details))
        for time_s, event, job, details in done.log.entries
        if job == job_id and event in ("start", "resize", "preempt")
    ]
    return [*changes, (end_s, 0)]
