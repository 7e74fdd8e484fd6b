"""Runs of the benchmark: contending jobs under each rule, and with an arbiter that is killed."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.collectives.core.costs import Link
from presage.collectives.demo.contending_jobs import JobResult, run_jobs
from presage.collectives.demo.inc_domain import IncDomain, inc_domain
from presage.collectives.demo.training_job import TrainingJob
from presage.collectives.simulation.live_jobs import MeasuredCall, MeasuredJob, predict_jobs
from presage.collectives.star_network import StarNetwork, star_network

MBIT_PER_S = 50.0
MIB = 1 << 20
JOB_SETS = {
    "two jobs": (TrainingJob("a", 3, 2 * MIB, 0.30), TrainingJob("b", 3, 2 * MIB, 0.42)),
    "three jobs": (
        TrainingJob("a", 3, 2 * MIB, 0.60),
        TrainingJob("b", 3, 2 * MIB, 0.85),
        TrainingJob("c", 3, MIB, 0.40),
    ),
    # The others communicate for half of an iteration and more, so that phases must overlap.
    "two jobs that communicate for a third": (
        TrainingJob("a", 3, MIB, 0.45),
        TrainingJob("b", 3, MIB, 0.60),
    ),
}
RULES = ("ring", "first-for-life", "time-saved")
SIMULATED_RULES = (*RULES, "first-come")
WARM_UP_S = 10.0
_DOWN_S, _UP_S = 1.0, 6.0


def run_set(name: str, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure a set of jobs under each rule, in turns; return what is stored."""
    jobs = JOB_SETS[name]
    rounds = []
    with star_network(sum(job.ranks for job in jobs), MBIT_PER_S) as network:
        for number in range(repeats):
            for rule in RULES:
                print(f"{name}: round {number + 1} of {repeats}, {rule}", flush=True)
                before = os.getloadavg()[0]
                results = run_rule(network, jobs, rule, seconds)
                rows = [_row(result) for result in results]
                load = [before, os.getloadavg()[0]]
                rounds.append({"rule": rule, "jobs": rows, "load": load})
    return {"set": name, "rounds": rounds}


def run_rule(
    network: StarNetwork, jobs: Sequence[TrainingJob], rule: str, seconds: float
) -> list[JobResult]:
    """Run jobs under one rule: all by ring, the first one on the switch, or all by the arbiter."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if rule == "ring":
            return run_jobs(network, jobs, seconds, warm_up_s=WARM_UP_S, logs=folder)
        with inc_domain(network, folder) as domain:
            return run_jobs(
                network, jobs, seconds, arbiter=domain.arbiter, token=domain.token, logs=folder,
                warm_up_s=WARM_UP_S,
                with_arbiter=lambda job: rule == "time-saved" or job is jobs[0],
            )  # fmt: skip


def run_killed(seconds: float) -> dict[str, Any]:
    """Kill the arbiter again and again while the jobs of the first set train."""
    jobs = JOB_SETS["two jobs"]
    with star_network(sum(job.ranks for job in jobs), MBIT_PER_S) as network:
        ring = run_rule(network, jobs, "ring", seconds)
        with tempfile.TemporaryDirectory() as place, inc_domain(network, Path(place)) as domain:
            killer = _Killer(domain)
            results = run_jobs(
                network, jobs, seconds, arbiter=domain.arbiter, token=domain.token,
                before_end=killer.stop, after_begin=killer.start, warm_up_s=WARM_UP_S,
                logs=Path(place),
            )  # fmt: skip
    return {
        "ring": [_row(result) for result in ring],
        "jobs": [_row(result) for result in results],
        "returns_s": killer.returns_s,
        "load": os.getloadavg()[0],
    }


class _Killer:
    """Kills the arbiter, and starts it again after a second.

    Attributes
    ----------
    returns_s : list of float
        Times at which the arbiter responded again.
    """

    def __init__(self, domain: IncDomain) -> None:
        self._domain, self._is_over = domain, threading.Event()
        self.returns_s: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_UP_S):
            self._domain.kill_arbiter()
            time.sleep(_DOWN_S)
            self._domain.start_arbiter()
            self.returns_s.append(time.monotonic())


def simulate_set(name: str, rounds: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Predict the iteration times of each rule from the rounds by ring and the times on the switch.

    DistributedDataParallel makes a bucket of each of the two layers. Durations on the switch are
    those of the job that had it for life, which nothing contends with.
    """
    jobs = JOB_SETS[name]
    by_ring = [round_ for round_ in rounds if round_["rule"] == "ring"]
    for_life = [r["jobs"][0] for r in rounds if r["rule"] == "first-for-life"]
    inc_s = statistics.median(
        end - start for row in for_life for start, end, on_switch in row["iterations"] if on_switch
    )
    measured = []
    for index, job in enumerate(jobs):
        iterations = by_ring[-1]["jobs"][index]["iterations"]
        calls = [_two_buckets(start_s, end_s, job) for start_s, end_s, _ in iterations]
        bucket_inc_s = inc_s * job.gradient_bytes / jobs[0].gradient_bytes / 2
        measured.append(
            MeasuredJob(job.name, job.ranks, ("switch",), calls, inc_s=[bucket_inc_s] * 2)
        )
    link = Link(0.0, MBIT_PER_S * 1e6 / 8)
    rules = [rule for rule in SIMULATED_RULES if rule != "first-for-life"]
    found = predict_jobs(measured, {"switch": 1}, link, rules=rules, duration_s=seconds)
    for_life = [measured[0], *(replace(other, switches=()) for other in measured[1:])]
    found |= predict_jobs(
        for_life, {"switch": 1}, link, rules=["first-for-life"], duration_s=seconds
    )
    return {
        rule: {job: outcome.iteration_s for job, outcome in outcomes.items()}
        for rule, outcomes in found.items()
    }


def _two_buckets(start_s: float, end_s: float, job: TrainingJob) -> list[MeasuredCall]:
    """Return the two AllReduces of an iteration, which are ready at once."""
    size, middle_s = job.gradient_bytes // 2, (start_s + end_s) / 2
    return [
        MeasuredCall(start_s, start_s, middle_s, size),
        MeasuredCall(start_s, middle_s, end_s, size),
    ]


def _row(result: JobResult) -> dict[str, Any]:
    return {
        "job": result.job.name,
        "iteration_s": result.iteration_s,
        "share": result.inc_share,
        "iterations": [list(one) for one in result.iterations],
        "is_equal": result.is_equal,
        "counts": result.counts,
    }
