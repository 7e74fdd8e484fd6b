"""Probes: waiting jobs of a simulated cluster, their predicted starts, and when they started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.forecast_worth.runs import (
    DEVICES_OF_A_NODE,
    KIND,
    MEMORY_BYTES,
    RESTART_S,
    TRACES,
    Run,
    begun_elsewhere,
    make_forecaster,
    measured_tables,
    traced,
)
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.model_measurements import attach_models
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.what_if.answer import Answer
from presage.schedulers.what_if.simulated_past import simulated_past
from presage.schedulers.what_if.snapshot import NO_PAST, Snapshot, take_snapshot
from presage.schedulers.what_if.what_if import what_if

FIRST, LAST = 0.3, 0.85  # of the trace's jobs, between whose submissions the questions are asked
HORIZON_S = 90 * 86_400.0
LOAD, RISK = 0.7, 0.1


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulated cluster, and the questions that are asked.

    Attributes
    ----------
    forecast : str
        Source of forecasts, as in ``benchmarks.forecast_worth``.
    moments, per_moment : int
        Number of times at which questions are asked, and of waiting jobs at each.
    progress : bool
        Whether running jobs report their progress.
    learns : bool
        Whether run times of ended jobs correct forecasts.
    arrivals : bool
        Whether later arrivals are predicted.
    """

    trace: str
    policy: str
    forecast: str = "retrained"
    seed: int = 0
    moments: int = 50
    per_moment: int = 10
    samples: int = 25
    progress: bool = True
    learns: bool = True
    arrivals: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """Waiting job, and what was predicted of it; times in seconds from the question."""

    job_id: str
    requested_s: float
    verdict: str
    low_s: float = 0.0
    median_s: float = 0.0
    high_s: float = 0.0
    started_s: float = 0.0


def probe_cluster(setting: Setting, lucid: Path, releases: Path) -> list[Probe]:
    """Simulate a cluster, ask about waiting jobs, and return the answers with the true starts."""
    tables = measured_tables(lucid)
    nodes = TRACES[setting.trace][2]
    cluster = Cluster(
        tuple(Node(f"n{i}", DEVICES_OF_A_NODE, KIND, MEMORY_BYTES) for i in range(nodes))
    )
    trace, busy = traced(setting.trace)
    trace = attach_models(begun_elsewhere(trace, setting.seed), tables, [KIND], seed=setting.seed)
    factor = LOAD * cluster.devices / busy
    costs = Checkpointing(restart_s=RESTART_S)
    jobs = [replace(job, submit_s=job.submit_s / factor, checkpointing=costs) for job in trace.jobs]
    truth = MeasuredTruth(trace.duration_s, tables, KIND)
    run = Run(setting.trace, LOAD, setting.policy, setting.forecast, RISK, setting.seed)
    forecaster = make_forecaster(run, truth, cluster, tables, releases)
    policy = policy_of(setting.policy)
    simulation = Simulation(cluster, policy, forecaster, truth, jobs, seed=setting.seed)
    rng, policy_rng = Random(setting.seed), Random(setting.seed)
    window = range(int(FIRST * len(jobs)), int(LAST * len(jobs)))
    due = sorted(jobs[i].submit_s for i in rng.sample(window, min(setting.moments, len(window))))
    probes: list[Probe] = []
    for state in simulation.moments():
        simulation.take(list(policy.decide(state, simulation.forecasts, policy_rng)))
        if not due or state.now_s < due[0] or not len(state.pending):
            continue
        due.pop(0)
        waiting = [job.job_id for job in state.pending]
        chosen = rng.sample(waiting, min(setting.per_moment, len(waiting)))
        snapshot = take_snapshot(state, past=simulated_past(simulation.results))
        answers = answered(snapshot, chosen, setting, forecaster)
        probes += [_probe(answer, state.now_s) for answer in answers]
    starts_s: dict[str, list[float]] = {}
    for at_s, event, job_id, _ in simulation.log.entries:
        if event == "start":
            starts_s.setdefault(job_id, []).append(at_s)
    return [_with_start(probe, starts_s[probe.job_id]) for probe in probes]


def answered(
    snapshot: Snapshot, job_ids: Sequence[str], setting: Setting, forecaster: Forecaster
) -> list[Answer]:
    """Return the answers about some jobs, with what the setting lets be known."""
    if not setting.progress:
        snapshot = replace(snapshot, estimated=frozenset(snapshot.active))
    past = snapshot.past
    if not setting.arrivals:
        past = replace(past, since_s=NO_PAST.since_s)
    if not setting.learns:
        past = replace(past, jobs=[replace(one, is_finished=False) for one in past.jobs])
    return what_if(
        replace(snapshot, past=past),
        job_ids,
        policy=setting.policy,
        forecaster=forecaster,
        samples=setting.samples,
        horizon_s=HORIZON_S,
        seed=setting.seed,
        ends=False,
    )


def _probe(answer: Answer, now_s: float) -> Probe:
    if answer.start is None:
        return Probe(answer.job_id, now_s, answer.verdict)
    quantiles = [answer.start.quantile_s(one) for one in (0.1, 0.5, 0.9)]
    return Probe(answer.job_id, now_s, answer.verdict, *quantiles)


def _with_start(probe: Probe, starts_s: Sequence[float]) -> Probe:
    """Return a probe with its true next start."""
    following = min(at_s for at_s in starts_s if at_s >= probe.requested_s)
    return replace(probe, started_s=following - probe.requested_s)
