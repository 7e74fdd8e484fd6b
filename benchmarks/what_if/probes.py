"""Probes: waiting jobs of a simulated cluster, their predicted starts, and when they started."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
from presage.schedulers.core.state import State
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.model_measurements import attach_models
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.what_if.answer import Answer
from presage.schedulers.what_if.simulated_past import simulated_past
from presage.schedulers.what_if.snapshot import NO_PAST, Snapshot, take_snapshot
from presage.schedulers.what_if.what_if import what_if

FIRST, LAST = 0.3, 0.85  # of the trace's jobs, between whose submissions the questions are asked
HORIZON_S = 30 * 86_400.0
LOAD, RISK = 0.7, 0.1
NOISE = 0.1  # standard deviation of the logarithm of run times of equal jobs


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
    noise : float
        Standard deviation of the logarithm of true run times of jobs that are equal to a forecast.
    """

    trace: str
    policy: str
    forecast: str = "shipped"
    seed: int = 0
    moments: int = 17
    per_moment: int = 10
    samples: int = 9
    progress: bool = True
    learns: bool = True
    arrivals: bool = True
    noise: float = 0.0


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
    """Simulate a cluster, ask about waiting jobs, and return the answers with the true starts.

    Questions are asked at times that are drawn uniformly from those at which jobs wait.
    """
    rng = Random(setting.seed)
    simulation, forecaster = _simulation(setting, lucid, releases)
    due = deque(_drawn_times(_waiting_times(simulation, setting), setting.moments, rng))
    simulation, forecaster = _simulation(setting, lucid, releases)
    probes: list[Probe] = []
    for state in _decided(simulation, setting):
        is_due = False
        while due and due[0] <= state.now_s:
            due.popleft()
            is_due = True
        if not is_due:
            continue
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


def _simulation(setting: Setting, lucid: Path, releases: Path) -> tuple[Simulation, Forecaster]:
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
    truth = MeasuredTruth(_varied(trace.duration_s, setting), tables, KIND)
    run = Run(setting.trace, LOAD, setting.policy, setting.forecast, RISK, setting.seed)
    forecaster = make_forecaster(run, truth, cluster, tables, releases)
    policy = policy_of(setting.policy)
    return Simulation(cluster, policy, forecaster, truth, jobs, seed=setting.seed), forecaster


def _varied(duration_s: Mapping[str, float], setting: Setting) -> dict[str, float]:
    """Return run times with a random part that no forecast can know."""
    rng = Random(setting.seed)
    return {one: s * math.exp(setting.noise * rng.gauss(0, 1)) for one, s in duration_s.items()}


def _decided(simulation: Simulation, setting: Setting) -> Iterator[State]:
    """Yield the state after each decision."""
    rng = Random(setting.seed)
    for state in simulation.moments():
        simulation.take(list(simulation.policy.decide(state, simulation.forecasts, rng)))
        yield state


def _waiting_times(simulation: Simulation, setting: Setting) -> list[tuple[float, float]]:
    """Return the periods with waiting jobs between the submissions of ``FIRST`` and ``LAST``."""
    found: list[tuple[float, float]] = []
    since_s: float | None = None
    for state in _decided(simulation, setting):
        if since_s is not None:
            found.append((since_s, state.now_s))
        since_s = state.now_s if len(state.pending) else None
    submitted = sorted(at_s for at_s, event, *_ in simulation.log.entries if event == "submit")
    first_s, last_s = (submitted[int(part * len(submitted))] for part in (FIRST, LAST))
    cut = ((max(begin_s, first_s), min(end_s, last_s)) for begin_s, end_s in found)
    return [(begin_s, end_s) for begin_s, end_s in cut if begin_s < end_s]


def _drawn_times(periods: Sequence[tuple[float, float]], count: int, rng: Random) -> list[float]:
    """Return times drawn uniformly from some periods."""
    chosen = rng.choices(periods, [end_s - begin_s for begin_s, end_s in periods], k=count)
    return sorted(rng.uniform(*period) for period in chosen)


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
