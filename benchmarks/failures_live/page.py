"""Page of benchmarks/failures_live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from benchmarks.failures_live.live import GRACE_S, LEASE_S, detection_of
from benchmarks.failures_live.outcome import Outcome, detection_delays_s, false_losses
from benchmarks.failures_live.policies import POLICIES, REPAIR_S
from benchmarks.failures_live.trace import (
    EVERY_S,
    HISTORY_DAYS,
    JOBS,
    LONGEST_S,
    MODEL_DAY_S,
    MTBF_DAYS,
    MTTR_DAYS,
    NODES,
    RATE_SPREAD,
    SHORTEST_S,
    Plan,
)

INTRODUCTION = """\
# Failures live and simulated

This benchmark kills the agents of a live cluster by a schedule that is drawn from the fault model,
and runs the same jobs and failures in the simulator. It shows what the policies gain, and how well
the simulator predicts it. Written by `python -m benchmarks.failures_live`.

![Jobs and failures of one seed, live and simulated](../pictures/failures_live.png)

- **Real**: the controller with its journal, {nodes} agents with one device each, the processes of
  jobs, kills and restarts. A node fails by SIGKILL of its agent and of all processes that the agent
  started, as by a power failure, and its agent is started again later.
- **Emulated**: the devices. A job sleeps for the time of its steps. Failed jobs begin again: they
  write no checkpoints.
- **Failures**: `--faults mtbf={mtbf:g},mttr={mttr:g},rate_spread={spread:g}`, where a day lasts
  {day:g} s. A node fails every {mtbf_s:g} s of uptime in the mean over all nodes, and is down for
  {mttr_s:g} s. Before the jobs, {history:g} such days of history of the same nodes are in the
  journal.
- **Jobs**: {jobs} for each seed, of one device and {shortest:g} to {longest:g} s, every {every:g} s
  in the mean. The forecasts of their run times are exact.
- **Policies**: `fifo`, `least-failing` and `expected` with `repair_s={repair:g}`. The last two use
  the hazard model that knows the mean failure rate, and learn those of nodes from the outages. They
  are the classes in `benchmarks/failures_live/policies.py`, since the hazards of forecasts are
  means over a day of the clock, in which every node fails here.
- **Detection**: with a lease of {lease:g} s a silent node gets no jobs after {suspect:g} s. Its
  jobs start elsewhere after {lost:g} s: the lease, {grace:g} s in which jobs may save their state,
  and 10 s. The simulator has the same times (`Detection`).
- **Simulated**: jobs arrive when they were submitted to the live cluster. The time that a job needs
  besides its steps, and an agent to join again, are medians of the live runs of the seed.
- The settings were chosen on other seeds. All seeds that were run are reported.
"""


class PolicyRun(NamedTuple):
    """Outcomes of a policy; ``immediate`` is simulated without delays of detection."""

    live: Outcome
    simulated: Outcome
    immediate: Outcome


class SeedRun(NamedTuple):
    """Outcomes of a seed, with the delays that were measured in its live runs."""

    seed: int
    plan: Plan
    live: Mapping[str, Mapping[str, Any]]
    policies: Mapping[str, PolicyRun]
    overhead_s: float
    rejoin_s: float


def page(
    runs: Sequence[SeedRun], simulated: Mapping[str, Sequence[Outcome]], notes: str
) -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION.format(
        nodes=NODES, mtbf=MTBF_DAYS, mttr=MTTR_DAYS, spread=RATE_SPREAD, day=MODEL_DAY_S,
        mtbf_s=MTBF_DAYS * MODEL_DAY_S, mttr_s=MTTR_DAYS * MODEL_DAY_S, history=HISTORY_DAYS,
        jobs=JOBS, shortest=SHORTEST_S, longest=LONGEST_S, every=EVERY_S, repair=REPAIR_S,
        lease=LEASE_S, suspect=detection_of().suspect_s, lost=detection_of().lost_s, grace=GRACE_S,
    )  # fmt: skip
    yield "## Results\n"
    yield f"Means over {len(runs)} seeds:\n"
    yield from _table(
        ("policy", "mean JCT live", "simulated", "difference", "makespan live", "simulated",
         "difference", "restarts live", "simulated", "lost GPU-seconds live", "simulated"),
        [_mean_row(name, runs) for name in POLICIES],
    )  # fmt: skip
    yield "Each seed:\n"
    yield from _table(
        ("seed", "policy", "mean JCT live", "simulated", "each job, mean", "makespan live",
         "simulated", "restarts live", "simulated", "lost GPU-seconds live", "simulated",
         "same first node", "same nodes"),
        [_seed_row(run, name) for run in runs for name in POLICIES],
    )  # fmt: skip
    yield "*same first node*: jobs that were first started on the same node. *same nodes*: also"
    yield "after each failure.\n"
    yield from _gains(simulated)
    yield from _detection(runs)
    yield from _hazards(runs)
    yield notes.rstrip("\n")


def _mean_row(name: str, runs: Sequence[SeedRun]) -> tuple[str, ...]:
    def both(value: Callable[[Outcome], float]) -> tuple[float, float]:
        found = [run.policies[name] for run in runs]
        return mean(value(one.live) for one in found), mean(value(one.simulated) for one in found)

    jct, makespan = both(lambda one: one.mean_jct_s), both(lambda one: one.makespan_s)
    restarts, lost = both(lambda one: one.restarts), both(lambda one: one.lost_s)
    return (
        f"`{name}`", f"{jct[0]:.1f} s", f"{jct[1]:.1f} s", _percent(jct[1] / jct[0]),
        f"{makespan[0]:.0f} s", f"{makespan[1]:.0f} s", _percent(makespan[1] / makespan[0]),
        f"{restarts[0]:.1f}", f"{restarts[1]:.1f}", f"{lost[0]:.0f}", f"{lost[1]:.0f}",
    )  # fmt: skip


def _seed_row(run: SeedRun, name: str) -> tuple[str, ...]:
    live, simulated, _ = run.policies[name]
    errors = [abs(simulated.jct_s[job] / jct_s - 1) for job, jct_s in live.jct_s.items()]
    nodes = [(live.nodes_of(job), simulated.nodes_of(job)) for job in live.jct_s]
    return (
        str(run.seed), f"`{name}`", f"{live.mean_jct_s:.1f} s", f"{simulated.mean_jct_s:.1f} s",
        f"{100 * mean(errors):.1f} %", f"{live.makespan_s:.0f} s", f"{simulated.makespan_s:.0f} s",
        str(live.restarts), str(simulated.restarts), f"{live.lost_s:.0f}",
        f"{simulated.lost_s:.0f}", f"{sum(one[0] == other[0] for one, other in nodes)} of {JOBS}",
        f"{sum(one == other for one, other in nodes)} of {JOBS}",
    )  # fmt: skip


def _gains(simulated: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    yield "## What do the policies gain?\n"
    count = len(next(iter(simulated.values())))
    yield f"Simulated with {count} other seeds, over `fifo` on the same seeds; 95 % intervals:\n"
    yield from _table(
        ("policy", "mean JCT", "makespan", "lost GPU-seconds", "restarts"),
        [
            (
                f"`{name}`",
                _ratio(simulated, name, lambda one: one.mean_jct_s),
                _ratio(simulated, name, lambda one: one.makespan_s),
                _ratio(simulated, name, lambda one: one.lost_s),
                _ratio(simulated, name, lambda one: one.restarts),
            )
            for name in POLICIES
            if name != "fifo"
        ],
    )


def _ratio(
    simulated: Mapping[str, Sequence[Outcome]], name: str, value: Callable[[Outcome], float]
) -> str:
    """Return the ratio of means to those of fifo, with its interval by bootstrap over seeds."""
    ours, base = (np.array([value(one) for one in simulated[key]]) for key in (name, "fifo"))
    drawn = np.random.default_rng(0).integers(0, len(ours), (2000, len(ours)))
    ratios = ours[drawn].sum(axis=1) / base[drawn].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return f"{ours.sum() / base.sum():.2f} ({low:.2f} to {high:.2f})"


def _detection(runs: Sequence[SeedRun]) -> Iterator[str]:
    live = [one for run in runs for one in run.live.values()]
    delays_s = detection_delays_s(live)
    joining = ", ".join(f"{run.rejoin_s:.1f}" for run in runs)
    extra = ", ".join(f"{run.overhead_s:.1f}" for run in runs)
    yield "## What does the detection of failures cost?\n"
    yield "- From the kill of a node to its loss in the journal:"
    yield (
        f"  {np.median(delays_s):.1f} s in the median of {len(delays_s)} losses, "
        f"{min(delays_s):.1f} to {max(delays_s):.1f} s. "
        f"{false_losses(live)} more losses were"
    )
    yield "  of nodes that had joined again."
    yield f"- Agents joined {joining} s after their start, by seed."
    yield f"- A job needed {extra} s besides its steps.\n"
    yield "If the simulator knew failures at once:\n"
    yield from _table(
        ("policy", "mean JCT live", "simulated, detection", "simulated, known at once"),
        [
            (
                f"`{name}`",
                f"{mean(run.policies[name].live.mean_jct_s for run in runs):.1f} s",
                f"{mean(run.policies[name].simulated.mean_jct_s for run in runs):.1f} s",
                f"{mean(run.policies[name].immediate.mean_jct_s for run in runs):.1f} s",
            )
            for name in POLICIES
        ],
    )


def _hazards(runs: Sequence[SeedRun]) -> Iterator[str]:
    yield "## Does the controller find the nodes that fail often?\n"
    yield (
        "Rank correlation (Spearman) between the drawn failure rates of the nodes and those that\n"
        "follow at the end from the outages that the controllers export, as by `presage cluster\n"
        "outages`:\n"
    )
    yield from _table(
        ("seed", "drawn rates", "outages before", "kills", "all outages", "outages of the run"),
        [_hazard_row(run) for run in runs],
    )
    yield "Kills are those of the longest run. Ranges are over the policies. *-*: the outages of a"
    yield "run alone differ by no more than chance, so the estimated rates are equal.\n"


def _hazard_row(run: SeedRun) -> tuple[str, ...]:
    kills = max(sum(map(len, live["failed"].values())) for live in run.live.values())
    return (
        str(run.seed),
        ", ".join(f"{rate:.2g}" for rate in run.plan.rates),
        str(len(run.plan.history)),
        str(kills),
        *(
            _range([_correlation(run.plan.rates, live[key]) for live in run.live.values()])
            for key in ("rates_per_s", "rates_of_run_per_s")
        ),
    )


def _range(values: Sequence[float]) -> str:
    if any(map(np.isnan, values)):
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _correlation(rates: Sequence[float], found: Sequence[float]) -> float:
    return float(spearmanr(rates, found)[0]) if len(set(found)) > 1 else float("nan")
