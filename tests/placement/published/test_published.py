"""The published policy, requirement by requirement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from presage.placement.core.batches import STRESS, draw_batches
from presage.placement.core.clusters import advance, makespans_s, new_clusters, start
from presage.placement.core.rules import RULES, run_rule
from presage.placement.published.networks import PlacementState, PublishedPolicy, state_of
from presage.placement.published.replay import Replay, Transition
from presage.placement.published.rewards import random_makespans_s, reward
from presage.placement.published.training import (
    PublishedSettings,
    makespans_published_s,
    place_batch,
    train_published,
    update,
)

SMALL = replace(STRESS, gpus=4, jobs=6, job_gpus=(1, 2))


def transition(number):
    state = np.full(6, 0.0, np.float32)
    return Transition(state, number % 4, float(number), state, -1.0)


def linear_sizes(network):
    return [one.out_features for one in network if isinstance(one, torch.nn.Linear)]


def test_l1_the_state_is_gpus_run_time_and_which_gpus_are_taken():
    clusters = new_clusters(draw_batches(SMALL, 1, seed=1))
    advance(clusters, 0)
    start(clusters, 0, 0, np.array([2]), np.inf)
    state = state_of(clusters, 0, 1, [0])
    jobs = clusters.jobs[0]
    assert state.taken.tolist() == [1, 0, 1, 0]
    assert state.vector().shape == (4 + 2,)
    assert state.gpus == jobs["gpus"][1] / 4
    assert state.runtime == jobs["runtime_s"][1] / jobs["runtime_s"].max()


def test_l2_l3_the_networks_have_the_published_widths():
    policy = PublishedPolicy(16)
    assert linear_sizes(policy.value) == [256, 196, 196, 128, 1]
    assert linear_sizes(policy.policy) == [256, 196, 196, 128, 16]


def test_l4_a_gpu_is_sampled_in_training_and_the_most_likely_one_is_used():
    torch.manual_seed(1)
    policy = PublishedPolicy(4)
    state = PlacementState(0.5, 0.5, np.array([0.0, 1.0, 0.0, 1.0]))
    p = policy.log_probabilities(torch.from_numpy(state.vector())[None])[0].exp()
    assert p[[1, 3]].tolist() == [0.0, 0.0]
    assert float(p.detach().sum()) == pytest.approx(1.0, abs=1e-6)
    sampled = {policy.choose(state, samples=True)[0] for _ in range(200)}
    assert sampled == {0, 2}
    assert policy.choose(state, samples=False)[0] == int(p.argmax())


def test_l5_t_random_is_the_smallest_makespan_of_random_placements():
    batches = draw_batches(SMALL, 3, seed=1)
    each = [makespans_s(run_rule(batches, RULES["random"], seed=2000 + i)) for i in range(4)]
    assert random_makespans_s(batches, 4, seed=2).tolist() == np.min(each, axis=0).tolist()


def test_l6_rewards():
    assert reward("saved", 10.0, 8.0) == pytest.approx(0.2)
    assert reward("speedup", 10.0, 8.0) == pytest.approx(1.25)
    assert reward("saved_over_rl", 10.0, 8.0) == pytest.approx(0.25)


def test_l7_the_oldest_transitions_overflow_and_the_batch_is_as_large_as_the_period():
    replay = Replay(10)
    replay.add(transition(i) for i in range(8))
    replay.add(transition(i) for i in range(8, 12))
    rng = np.random.default_rng(1)
    assert len(replay) == 10
    assert {one.reward for one in replay.batch("all", rng)} == set(range(2, 12))
    assert len(replay.batch("period", rng)) == 4


@pytest.mark.parametrize("kind", ["importance", "clip"])
def test_l8_an_update_makes_a_rewarded_action_more_likely(kind):
    torch.manual_seed(2)
    policy = PublishedPolicy(4)
    state = PlacementState(0.5, 0.5, np.zeros(4))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    settings = PublishedSettings(update=kind)
    inputs = torch.from_numpy(state.vector())[None]
    before = policy.log_probabilities(inputs)[0].detach()
    batch = [
        Transition(state.vector(), a, float(a == 2), state.vector(), float(before[a]))
        for a in range(4)
    ]
    for _ in range(3):
        update(policy, optimizer, batch, settings)
    assert policy.log_probabilities(inputs)[0, 2] > before[2]


def test_l9_l12_training_runs_the_planned_rounds_in_the_simulator_and_repeats():
    batches = draw_batches(SMALL, 2, seed=3)
    rounds = []
    settings = PublishedSettings(rounds=5, random_placements=2)
    trained = [
        train_published(batches, settings, seed=4, report=lambda i, r: rounds.append(i))
        for _ in range(2)
    ]
    assert rounds == [0, 1, 2, 3, 4] * 2
    weights = [torch.cat([one.flatten() for one in p.parameters()]).tolist() for p in trained]
    assert weights[0] == weights[1]


def test_l10_in_use_the_value_network_does_not_matter():
    batches = draw_batches(SMALL, 2, seed=3)
    policy = PublishedPolicy(4)
    before = makespans_published_s(batches, policy)
    for one in policy.value.parameters():
        one.data.fill_(torch.nan)
    assert makespans_published_s(batches, policy) == before


def test_l11_gpus_are_not_shared():
    clusters, transitions = place_batch(
        draw_batches(SMALL, 1, seed=5), PublishedPolicy(4), samples=True
    )
    assert all(one.state[2 + one.action] == 0 for one in transitions)
    assert np.isfinite(makespans_s(clusters)).all()
