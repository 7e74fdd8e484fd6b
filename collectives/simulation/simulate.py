"""Simulation of the AllReduce phases of jobs under a rule."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from presage.collectives.simulation.phased_job import PhasedJob, Way
from presage.collectives.simulation.rules import Rule

WARM_UP = 0.2  # share of the run that is not counted: rhythms are learnt
REFUSAL_LATENCIES = 3  # a refused AllReduce: to the switch and back, and the vote of the ranks


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one job.

    Attributes
    ----------
    iteration_s : float
        Mean time of an iteration after the warm-up.
    inc_share : float
        Share of its AllReduces that the switch computed.
    refused : int
        AllReduces that a rank sent to a switch without a free slot.
    """

    iteration_s: float
    inc_share: float
    refused: int


@dataclass(slots=True)
class _State:
    """Progress of a job: the iteration under way and what was counted."""

    job: PhasedJob
    random: random.Random
    begin_s: float
    slow: float = 1.0
    number: int = 0
    ends_s: list[float] = field(default_factory=list)  # of iterations
    on_switch: int = 0
    counted: int = 0
    refused: int = 0

    def begin(self, now_s: float) -> None:
        """Begin an iteration; its computation takes ``slow`` times as long as without jitter."""
        self.begin_s = now_s
        self.slow = math.exp(self.random.gauss(0.0, self.job.jitter)) if self.job.jitter else 1.0

    @property
    def position(self) -> int:
        return self.number % len(self.job.calls)

    @property
    def ready_s(self) -> float:
        return self.begin_s + self.slow * self.job.calls[self.position].offset_s


def simulate_phases(
    jobs: Sequence[PhasedJob],
    slots: Mapping[str, int],
    rule: Rule,
    *,
    duration_s: float,
    seed: int = 0,
) -> dict[str, Outcome]:
    """Run jobs until ``duration_s``, and return the result of each by its id.

    The jitter of a job depends on the seed and its id only, so rules are compared on equal terms.

    Raises
    ------
    ValueError
        Two jobs have one id, a switch is unknown, or a job has no whole iteration after the
        warm-up.
    """
    if len({job.job_id for job in jobs}) != len(jobs):
        raise ValueError("two jobs have the same id")
    for job in jobs:
        if unknown := set(job.switches) - set(slots):
            raise ValueError(f"job {job.job_id!r}: unknown switch {min(unknown)!r}")
    states = [_State(job, _random(seed, job), job.start_s) for job in jobs]
    busy_until_s: dict[str, list[float]] = {name: [] for name in slots}
    ties = itertools.count()
    events: list[tuple[float, int, _State | None]] = []
    for state in states:
        state.begin(state.job.start_s)
        events.append((state.ready_s, next(ties), state))
    if rule.interval_s < math.inf:
        events.append((rule.interval_s, next(ties), None))
    heapq.heapify(events)
    while events and events[0][0] <= duration_s:
        now_s, _, due = heapq.heappop(events)
        if due is None:
            rule.plan(now_s)
            heapq.heappush(events, (now_s + rule.interval_s, next(ties), None))
        else:
            next_s = _run_call(due, now_s, rule, slots, busy_until_s, duration_s * WARM_UP)
            heapq.heappush(events, (next_s, next(ties), due))
    return {state.job.job_id: _outcome(state, duration_s * WARM_UP) for state in states}


def _random(seed: int, job: PhasedJob) -> random.Random:
    return random.Random(f"{seed} {job.job_id}")  # noqa: S311 (nothing secret)


def _run_call(
    state: _State,
    now_s: float,
    rule: Rule,
    slots: Mapping[str, int],
    busy_until_s: dict[str, list[float]],
    counted_from_s: float,
) -> float:
    """Start an AllReduce, and return the start of the next one."""
    job, position = state.job, state.position
    rule.observe(job, state.number, now_s, job.calls[position].size_bytes)
    for name in job.switches:
        busy_until_s[name] = [end_s for end_s in busy_until_s[name] if end_s > now_s]
    is_free = all(len(busy_until_s[name]) < slots[name] for name in job.switches)
    is_allowed = bool(job.switches) and rule.is_allowed(job, state.number)
    is_refused = is_allowed and rule.has_limits and not is_free
    way = Way.INC if is_allowed and not is_refused else rule.fixed or job.without_inc(position)
    end_s = now_s + job.duration_s(way, position)
    if is_refused:
        end_s += REFUSAL_LATENCIES * job.link.latency_s
    for name in job.switches if way is Way.INC else ():
        busy_until_s[name].append(end_s)
    if now_s >= counted_from_s:
        state.counted += 1
        state.on_switch += way is Way.INC
        state.refused += is_refused
    state.number += 1
    if state.position == 0:
        state.ends_s.append(end_s)
        state.begin(end_s)
    return max(end_s, state.ready_s)


def _outcome(state: _State, counted_from_s: float) -> Outcome:
    ends_s = [end_s for end_s in state.ends_s if end_s >= counted_from_s]
    if len(ends_s) < 2:
        raise ValueError(f"job {state.job.job_id!r}: no iteration after the warm-up; run longer")
    iteration_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)
    return Outcome(iteration_s, state.on_switch / state.counted, state.refused)
