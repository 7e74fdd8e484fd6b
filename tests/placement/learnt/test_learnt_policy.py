"""The policy `learnt` in the simulator decides as the scorer on the core does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.placement.core.batches import CHECKPOINTS, STRESS, draw_batches
from presage.placement.core.real_batch import known_hazards, real_simulation
from presage.placement.core.rules import LARGEST, LEAST_FAILING, Rule, typed
from presage.placement.learnt.observation import observe, rule_action
from presage.placement.learnt.rollout import roll_out
from presage.placement.learnt.state_records import view_records
from presage.placement.learnt.training import greedy
from presage.schedulers.core.job import Job
from presage.schedulers.policies.failures.learnt.learnt_policy import Learnt
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    Observer,
)
from presage.schedulers.policies.failures.learnt.placement_view import DOWN, IDLE, PlacementView
from tests.placement.learnt.releases import random_scorer, write_release
from tests.support.slow_tests import examples

pytest.importorskip("onnxruntime")

RULE = Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING, patience=0.7)
WORLDS = {
    "stress": replace(STRESS, gpus=8, jobs=12),
    "arrivals": replace(STRESS, gpus=12, jobs=16, arrivals_per_h=0.4),
    "checkpoints": replace(CHECKPOINTS, gpus=8, jobs=12),
    "intervals": replace(CHECKPOINTS, gpus=8, jobs=12, arrivals_per_h=0.5),
}
BATCHES = 60  # of each world: 240 in all


@pytest.mark.parametrize("name", WORLDS)
def test_decisions_are_those_of_the_scorer_on_the_core(name, tmp_path):
    sets_interval = name == "intervals"
    rule = RULE._replace(is_interval_chosen=sets_interval)
    folder = write_release(
        tmp_path,
        rule={"exponent": 0.5, "patience": 0.7, "repair_s": 7200.0, "sets_interval": sets_interval},
    )
    batches = draw_batches(WORLDS[name], BATCHES, seed=3)
    clusters, _ = roll_out(batches, rule, greedy(random_scorer()))
    by_rule, _ = roll_out(batches, rule, lambda observation, action: action)
    for b in range(BATCHES):
        simulation = real_simulation(batches, b, Learnt(str(folder), known_hazards(batches, b)))
        simulation.run()
        found = {int(one.job.job_id): one.end_s for one in simulation.results}
        expected = dict(enumerate(clusters.jobs["done_s"][b].tolist()))
        assert found == pytest.approx(expected, rel=1e-6), b
        assert simulation.policy.warning == ""
    assert (clusters.jobs["done_s"] != by_rule.jobs["done_s"]).any(axis=1).mean() > 0.4


@st.composite
def views(draw):
    """Draw views with pending and running jobs and devices that are down."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    devices = int(rng.integers(1, 20))
    holder = np.where(rng.random(devices) < 0.2, DOWN, IDLE)
    pending = int(rng.integers(0, 10))
    gpus, end_s = list(rng.integers(1, devices + 1, pending)), [math.inf] * pending
    now_s = float(rng.uniform(0, 1e6))
    for _ in range(int(rng.integers(0, 6))):
        free = np.flatnonzero(holder == IDLE)
        if len(free):
            chosen = rng.permutation(free)[: rng.integers(1, len(free) + 1)]
            holder[chosen] = len(gpus)
            gpus.append(len(chosen))
            end_s.append(now_s + float(rng.lognormal(9, 2)))
    count = len(gpus)
    if not count:
        gpus, end_s, count = [1], [math.inf], 1
    rates = rng.lognormal(-12, 2, devices) * (rng.random() > 0.1)
    has_costs = rng.random() < 0.5
    return PlacementView(
        jobs=[Job(f"{j}", 0.0, gpus=int(n)) for j, n in enumerate(gpus)],
        gpus=np.array(gpus, np.int64),
        runtime_s=rng.lognormal(9, 2, count),
        interval_s=np.full(count, rng.uniform(60, 1e4) if has_costs else math.inf),
        cost_s=np.full(count, 60.0 if has_costs else 0.0),
        restart_s=np.full(count, 300.0 if has_costs else 0.0),
        saved=rng.random(count) * (rng.random(count) < 0.3),
        is_running=np.isfinite(end_s),
        end_s=np.array(end_s),
        rates_per_s=rates,
        holder=holder,
        safest=np.argsort(rates, kind="stable"),
        masks=[np.ones(devices, bool)],
        mask_of=np.zeros(count, np.int64),
        now_s=now_s,
        repair_s=float(rng.uniform(0, 1e4)),
    )


@settings(max_examples=examples(300), deadline=None)
@given(
    view=views(), exponent=st.sampled_from((0.0, 0.5, 1.0)), patience=st.sampled_from((0.0, 0.8))
)
def test_the_policy_observes_what_the_core_observes(view, exponent, patience):
    rule = typed(RULE._replace(exponent=exponent, patience=patience))
    clusters, count = view_records(view), len(view.jobs)
    jobs, cluster = np.zeros((count, len(JOB_FEATURES))), np.zeros(len(CLUSTER_FEATURES))
    allowed = np.zeros(count + 1, bool)
    observe(clusters, rule, 0, jobs, cluster, allowed)

    observer = Observer(view, exponent, patience)
    found = observer.observe(observer.fitting())
    assert found.fit.tolist() == np.flatnonzero(allowed[:-1]).tolist()
    assert found.may_wait == allowed[-1]
    assert found.jobs == pytest.approx(jobs[found.fit], rel=1e-9, abs=1e-9)
    assert not jobs[~allowed[:-1]].any()
    assert found.cluster == pytest.approx(cluster, rel=1e-9, abs=1e-9)
    row = observer.rule_action(found, np.arange(len(found.fit)))
    assert [*found.fit.tolist(), count][row] == rule_action(clusters, rule, 0)
