"""A log holds all that happened: what is decided by it again writes the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ImpossibleActionError, TableError
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.faults.fault import Fault
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.policy_registry import POLICIES
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from presage.schedulers.simulator.simulation import Simulation
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.simulator.replay import Replay
from tests.support.slow_tests import examples

GOLDEN = Path(__file__).parent / "golden.jsonl"
MODELS = {"small": (0.3, 3), "large": (0.6, 9), "huge": (0.9, 12)}
WORLD = Measurements(
    features={},
    step_s={(model, "v100"): 0.1 for model in MODELS},
    busy={(model, "v100"): busy for model, (busy, _) in MODELS.items()},
    memory_bytes={(model, "v100"): gib * GIB for model, (_, gib) in MODELS.items()},
    slowdowns={("v100", ("large", "small")): (1.1, 1.3), ("v100", ("small", "small")): (1.2, 1.2)},
)


class AnyThing(Fifo):
    """Does whatever can be done, as it is drawn; also what cannot."""

    def decide(self, state, forecasts, rng):
        actions: list[Action] = []
        for one in [*state.pending][:3]:
            if rng.random() < 0.05:
                actions.append(Reject(one.job_id, "for no reason"))
            elif rng.random() < 0.15:
                kept = tuple(state.cluster.full_allocations[: one.gpus])[: rng.randint(1, 4)]
                actions.append(Reserve(one.job_id, kept, state.now_s + rng.choice((5.0, 50.0))))
            elif rng.random() < 0.7:
                share, memory = rng.choice(((FULL_DEVICE_MILLI, 16), (300, 4), (600, 8)))
                devices = rng.sample(range(state.cluster.devices), one.gpus)
                allocations = tuple(Allocation(device, share, memory * GIB) for device in devices)
                actions.append(Start(one.job_id, allocations))
        for job_id, status in state.running.items():
            drawn = rng.random()
            if drawn < 0.05:
                actions.append(Preempt(job_id))
            elif drawn < 0.1:
                actions.append(Pause(job_id))
            elif drawn < 0.2:
                changed = tuple(g._replace(compute_milli=200) for g in status.allocations)
                actions.append(Resize(job_id, changed))
            elif drawn < 0.25:
                elsewhere = tuple(
                    g._replace(device=(g.device + 1) % state.cluster.devices)
                    for g in status.allocations
                )
                actions.append(Migrate(job_id, elsewhere))
        for one_id in self.paused(state):
            actions.append(Resume(one_id))
        actions.append(Wake(state.now_s + rng.choice((1.0, 7.5, 100.0))))
        return actions

    def paused(self, state):
        on = {job_id for device in range(state.cluster.devices) for job_id in state.jobs_on(device)}
        return sorted(on - state.running.keys())


def busy_day(seed, policy, *, jobs=60):
    """Return a day with shared devices, preemption, faults, overflows and urgent jobs."""
    from random import Random

    drawn, made, lengths, now_s = Random(seed), [], {}, 0.0
    for i in range(jobs):
        now_s += drawn.choice((0.0, 1.0, 3.3, 40.0))
        name = str(i)
        made.append(
            job(
                name, now_s, gpus=drawn.choice((1, 1, 1, 2, 4, 99 if i == 5 else 1)),
                model=drawn.choice(list(MODELS)), latency_sensitive=drawn.random() < 0.2,
                checkpointing=drawn.choice(
                    (Checkpointing(), Checkpointing(20.0, 1.0, 2.0), Checkpointing(cost_s=5.0))
                ),
            )
        )  # fmt: skip
        lengths[name] = drawn.choice((0.5, 10.0, 33.3, 200.0))
    faults = [Fault(30.0, 0, repaired=False), Fault(90.0, 0, repaired=True)]
    return simulated(
        cluster(2, 3), policy, made, MeasuredTruth(lengths, WORLD, "v100", shares="caps"),
        faults=faults, seed=seed, stop_on_impossible=False,
    )  # fmt: skip


@settings(deadline=None, max_examples=examples(30))
@given(seed=st.integers(0, 10_000))
def test_replayed_decisions_write_the_same_log(seed):
    first = list(busy_day(seed, AnyThing(), jobs=20).log.lines())
    assert list(busy_day(seed, Replay(first), jobs=20).log.lines()) == first


@pytest.mark.parametrize("name", POLICIES)
def test_the_log_of_every_policy_can_be_replayed(name):
    first = list(busy_day(1, POLICIES[name]()).log.lines())
    assert list(busy_day(1, Replay(first)).log.lines()) == first


# Return values of policies are not type-checked.
start: Any = Start
reserve: Any = Reserve
reject: Any = Reject
wake: Any = Wake
# Of a job and a device.
IMPOSSIBLE: list[Callable[[Any, Any], list[Any]]] = [
    lambda one, device: [start(one, (device._replace(device=np.int64(0)),))],
    lambda one, device: [start(one, {device, device._replace(device=1)})],
    lambda one, device: [start(one, [device])],
    lambda one, device: [start(one, (device._replace(memory_bytes=10**5000),))],
    lambda one, device: [start(one, (device,)), "garbage"],
    lambda one, device: [start(one, (device,)), None],
    lambda one, device: [start(object(), (device,))],
    lambda one, device: [object()],
    lambda one, device: [reject(one, object())],
    lambda one, device: [reserve(one, (device,), np.float32(1e6))],
    lambda one, device: [reserve(one, (device,), 10**400)],
    lambda one, device: [wake(np.float32(1e6))],
    lambda one, device: [wake(10**400)],
]


class Careless(Fifo):
    """Policy that decides each impossible action once, and possible ones in between."""

    def __init__(self):
        self.impossible_actions = [one for impossible in IMPOSSIBLE for one in (None, impossible)]

    def decide(self, state, forecasts, rng):
        first = state.pending.first()
        impossible = self.impossible_actions.pop() if first and self.impossible_actions else None
        if impossible is None:
            return [*super().decide(state, forecasts, rng), Wake(state.now_s + 1)]
        return impossible(first.job_id, state.cluster.full_allocations[0])


def test_refused_decisions_are_logged_by_their_reason_and_replayed():
    first, again = (list(busy_day(3, Careless()).log.lines()) for _ in range(2))
    refused = [json.loads(line)["details"] for line in first if '"refused"' in line]

    assert len(refused) == len(IMPOSSIBLE)
    assert {tuple(more) for more in refused} == {("reason",)}
    assert again == first
    assert list(busy_day(3, Replay(first)).log.lines()) == first


def test_a_log_that_ended_in_an_error_ends_in_it_again():
    def stopped(policy):
        jobs, devices = [job("a")], cluster(1)
        ground_truth = TraceDurations({"a": 1.0})
        simulation = Simulation(devices, policy, Oracle(ground_truth, devices), ground_truth, jobs)
        with pytest.raises(ImpossibleActionError, match="expected a time that fits into a float"):
            simulation.run()
        return list(simulation.log.lines())

    first = stopped(Careless())
    assert len(first) == 3
    assert stopped(Replay(first)) == first


def test_a_job_rejected_without_a_reason_is_replayed():
    class Silent(Fifo):
        def decide(self, state, forecasts, rng):
            return [Reject(one.job_id, "") for one in state.pending]

    first = list(busy_day(1, Silent(), jobs=5).log.lines())
    assert list(busy_day(1, Replay(first), jobs=5).log.lines()) == first


def golden_lines():
    days = [
        busy_day(7, POLICIES["packing"](), jobs=30),
        busy_day(7, POLICIES["srtf"](), jobs=30),
        busy_day(51, AnyThing(), jobs=20),
    ]
    return [line for day in days for line in day.log.lines()]


def test_a_simulated_day_equals_the_golden_log():
    """Golden log: a change of it changes schedules; check each line before rewriting it."""
    lines = golden_lines()
    assert GOLDEN.read_text().splitlines() == lines
    words = {word for line in lines for word in line.split('"')}
    assert {
        "overflow", "fail", "repair", "lost", "preempt", "reject", "finish", "reserve", "expire",
        "resize", "migrate", "pause", "resume", "refused",
    } <= words  # fmt: skip


def test_names_of_nodes_and_devices_have_no_effect():
    from presage.schedulers.core.cluster import Cluster, Node

    jobs = [job(str(i), i / 2, gpus=1 + i % 3) for i in range(40)]
    lengths = {one.job_id: 10.0 + 7 * int(one.job_id) % 13 for one in jobs}
    other = Cluster((Node("z", 2, "mine", 16 * GIB), Node("a", 3, "mine", 16 * GIB)))
    for name, policy in POLICIES.items():
        here = simulated(cluster(2, 3), policy(), jobs, lengths)
        there = simulated(other, policy(), jobs, lengths)
        assert list(here.log.lines()) == list(there.log.lines()), name


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "[]", '{"time_s": 1}', '{"time_s": "x", "event": "start"}',
        '{"time_s": 1, "event": "start", "job_id": "a", "details": [[1]]}',
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_log_is_named(line):
    with pytest.raises(TableError, match="line 2 is none of a simulation's log"):
        Replay(['{"time_s": 0.0, "event": "finish", "job_id": "a"}', line])
