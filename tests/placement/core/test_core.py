"""The placement core: equal to the scheduler's simulator, and its laws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.placement.core.batches import (
    CHECKPOINTS,
    STRESS,
    BatchSettings,
    draw_batches,
)
from presage.placement.core.clusters import (
    DONE,
    average_jcts_s,
    makespans_s,
    new_clusters,
    training_time_ratios,
)
from presage.placement.core.real_batch import known_hazards, real_simulation
from presage.placement.core.rules import LARGEST, LEAST_FAILING, MATCHED, RULES, Rule, run_rule
from presage.schedulers.policies.failures.device_policy import FirstFit
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.least_failing import LeastFailing, Matched
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from tests.support.slow_tests import examples

ORDERED = Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING)
AVOIDING = Rule(choice=LEAST_FAILING, avoided=0.25, avoided_above=2.0)
PAIRS = {  # the core's rule, and the policy that decides the same
    "first-fit": (RULES["first-fit"], lambda hazards: FirstFit()),
    "least-failing": (RULES["least-failing"], lambda hazards: LeastFailing(hazards=hazards)),
    "matched": (RULES["matched"], lambda hazards: Matched(hazards=hazards)),
    "avoiding": (
        AVOIDING, lambda hazards: LeastFailing(avoid=0.25, avoid_above=2.0, hazards=hazards)
    ),
    "interval": (
        RULES["least-failing"]._replace(is_interval_chosen=True),
        lambda hazards: LeastFailing(sets_interval=True, hazards=hazards),
    ),
    "ordered": (ORDERED, lambda hazards: Expected(a=0.5, patience=0.0, hazards=hazards)),
    "expected": (ORDERED._replace(patience=1.0), lambda hazards: Expected(hazards=hazards)),
}  # fmt: skip
WORLDS = {
    "stress": STRESS,
    "arrivals": replace(STRESS, arrivals_per_h=0.4),
    "checkpoints": CHECKPOINTS,
    # A policy does not see how long a restart still takes, and the rule that waits does.
    "free checkpoints": replace(CHECKPOINTS, cost_h=0.0, restart_h=0.0, arrivals_per_h=0.5),
}
BATCHES = 40  # for each world and rule: 1,080 in all

small = st.builds(
    BatchSettings,
    gpus=st.integers(2, 6),
    jobs=st.integers(1, 6),
    job_gpus=st.just((1, 2)),
    mtbf_h=st.sampled_from((20.0, 200.0)),
    interval_h=st.sampled_from((1.0, float("inf"))),
    cost_h=st.sampled_from((0.0, 0.05)),
    restart_h=st.sampled_from((0.0, 0.2)),
    arrivals_per_h=st.sampled_from((0.5, float("inf"))),
)
rules = st.sampled_from([rule for rule, _ in PAIRS.values()] + [RULES["random"]])


# With restart costs `expected` differs: its policy does not see how long a restart still takes.
COMPARED = [(w, r) for w in WORLDS for r in PAIRS if (w, r) != ("checkpoints", "expected")]


@pytest.mark.parametrize(("world", "rule"), COMPARED)
def test_l13_the_core_equals_the_simulator_on_a_thousand_batches(world, rule):
    batches = draw_batches(WORLDS[world], BATCHES, seed=len(world) * len(rule))
    made, policy = PAIRS[rule]
    clusters = run_rule(batches, made)

    for b in range(BATCHES):
        simulation = real_simulation(batches, b, policy(known_hazards(batches, b)))
        simulation.run()
        ends = {int(one.job.job_id): one.end_s for one in simulation.results}
        assert [ends[j] for j in range(len(ends))] == pytest.approx(
            clusters.jobs["done_s"][b].tolist(), rel=1e-6
        )
        assert simulation.lost_device_s == pytest.approx(clusters.totals["lost_s"][b], rel=1e-6)
        metrics = compute_metrics(simulation)
        assert metrics.restarts == (clusters.jobs["starts"][b] - 1).sum()
        assert metrics.effective_training_time_ratio == pytest.approx(
            training_time_ratios(clusters)[b], rel=1e-6
        )


def test_the_compiled_core_equals_the_plain_one():
    pytest.importorskip("numba")
    code = (
        "import json; from tests.placement.core.test_core import *\n"
        "batches = draw_batches(CHECKPOINTS, 5, seed=3)\n"
        "print(json.dumps([makespans_s(run_rule(batches, rule, seed=1)).tolist()"
        " for rule in [RULES['random'], *(rule for rule, _ in PAIRS.values())]]))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"NUMBA_DISABLE_JIT": flag},
            capture_output=True, text=True, check=True,
        ).stdout
        for flag in "01"
    ]  # fmt: skip
    assert json.loads(found[0]) == json.loads(found[1])


@settings(deadline=None, max_examples=examples(60))
@given(world=small, rule=rules, seed=st.integers(0, 1000))
def test_laws_of_every_rule(world, rule, seed):
    batches = draw_batches(world, 3, seed=seed)
    clusters = run_rule(batches, rule, seed=seed)
    jobs, totals = clusters.jobs, clusters.totals
    work_s = (batches.gpus * batches.runtime_s).sum(axis=1)
    makespan_s = makespans_s(clusters)

    assert (jobs["phase"] == DONE).all()
    assert (jobs["done_s"] >= batches.submit_s + batches.runtime_s * (1 - 1e-9)).all()
    assert (makespan_s * world.gpus >= work_s * (1 - 1e-9)).all()
    assert (totals["held_s"] >= (work_s + totals["lost_s"]) * (1 - 1e-9)).all()
    assert (average_jcts_s(clusters) <= jobs["done_s"].max(axis=1)).all()
    if world.cost_h == 0 or world.interval_h == float("inf"):  # work done is work kept or lost
        assert totals["held_s"] == pytest.approx(work_s + totals["lost_s"], rel=1e-9)


@settings(deadline=None, max_examples=examples(30))
@given(world=small, seed=st.integers(0, 1000))
def test_least_failing_does_not_depend_on_the_numbers_of_gpus(world, seed):
    batches = draw_batches(world, 2, seed=seed)
    order = np.random.default_rng(seed).permutation(world.gpus)
    renumbered = batches._replace(
        fails_s=batches.fails_s[:, order],
        repaired_s=batches.repaired_s[:, order],
        hazard_per_s=batches.hazard_per_s[:, order],
    )
    for rule in (RULES["least-failing"], AVOIDING, ORDERED._replace(patience=1.0)):
        found = [makespans_s(run_rule(one, rule)) for one in (batches, renumbered)]
        assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_without_failures_every_choice_of_gpus_takes_as_long():
    batches = draw_batches(replace(STRESS, mtbf_h=1e9), 5, seed=1)
    found = [makespans_s(run_rule(batches, rule)).tolist() for rule in RULES.values()]
    assert found[0] == found[1] == found[2] == found[3]


def test_l14_least_failing_beats_first_fit_on_the_same_failures():
    pytest.importorskip("numba", reason="takes minutes without numba")
    for world, most in ((STRESS, 0.66), (CHECKPOINTS, 0.985)):
        batches = draw_batches(world, 2000, seed=77)
        first, least = (
            makespans_s(run_rule(batches, RULES[name])).mean()
            for name in ("first-fit", "least-failing")
        )
        assert least <= most * first


def test_all_gpus_down_for_ever_gives_an_infinite_makespan():
    batches = draw_batches(replace(STRESS, gpus=8, jobs=2), 1, seed=1)
    down = batches._replace(
        fails_s=np.concatenate([np.full((1, 8, 1), 1.0), np.full((1, 8, 1), np.inf)], axis=-1),
        repaired_s=np.full((1, 8, 2), np.inf),
    )
    assert makespans_s(run_rule(down, RULES["least-failing"])).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gpus", 99, "at most the 16"),
        ("hazard_per_s", np.nan, "hazard_per_s has values"),
        ("hazard_per_s", np.inf, "hazard_per_s has values"),
        ("interval_s", 0.0, "interval_s must be > 0"),
        ("runtime_s", -1.0, "runtime_s has values"),
    ],
)
def test_invalid_batches_are_rejected(field, value, message):
    batches = draw_batches(STRESS, 1, seed=1)
    getattr(batches, field)[0, 3] = value
    with pytest.raises(ConfigError, match=message):
        new_clusters(batches)


def test_a_matched_rule_gives_the_longest_job_the_safest_gpu():
    batches = draw_batches(replace(STRESS, gpus=2, jobs=2, job_gpus=(1,)), 1, seed=4)
    batches.runtime_s[0], batches.hazard_per_s[0] = [10.0, 20.0], [1e-9, 2e-9]
    clusters = run_rule(batches, Rule(choice=MATCHED))
    assert clusters.gpus["safest"][0].tolist() == [0, 1]
    assert clusters.jobs["starts"][0].tolist() == [1, 1]
