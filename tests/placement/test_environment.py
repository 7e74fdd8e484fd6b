"""The gymnasium environment wraps the real simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from presage.placement.core.batches import STRESS, draw_batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import LARGEST, LEAST_FAILING, Rule
from presage.placement.learnt.rollout import roll_out

gymnasium = pytest.importorskip("gymnasium")

SMALL = replace(STRESS, gpus=6, jobs=8, job_gpus=(1, 2, 4), arrivals_per_h=0.5)


def made(settings=SMALL):
    from presage.placement.environment import ENVIRONMENT, register_environment

    register_environment()
    return gymnasium.make(ENVIRONMENT, settings=settings)


def first_allowed(allowed, step):
    """Return an action that depends on the step, so that jobs wait and overtake."""
    possible = np.flatnonzero(allowed)
    return int(possible[step % len(possible)])


def test_the_environment_passes_the_checks_of_gymnasium():
    from gymnasium.utils.env_checker import check_env

    check_env(made().unwrapped, skip_render_check=True)


@pytest.mark.parametrize("seed", range(5))
def test_decisions_and_observations_equal_those_on_the_core(seed):
    environment = made()
    observed, _ = environment.reset(seed=seed)
    batches = environment.unwrapped.batches
    seen, done, steps = [], False, 0
    while not done:
        seen.append(observed)
        action = first_allowed(observed["allowed"], steps)
        observed, _, done, _, info = environment.step(action)
        steps += 1

    rule = Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING)
    count = iter(range(10**6))

    def choose(observation, _):
        return np.array([first_allowed(observation.allowed[0], next(count))])

    clusters, rollout = roll_out(batches, rule, choose)
    assert info["makespan_s"] == pytest.approx(makespans_s(clusters)[0], rel=1e-6)
    assert len(rollout) == len(seen)
    for one, other in zip(seen, rollout, strict=True):
        assert one["allowed"].tolist() == other.observation.allowed[0].astype(int).tolist()
        assert one["advised"].tolist() == other.observation.advised[0].astype(int).tolist()
        assert one["jobs"] == pytest.approx(other.observation.jobs[0], abs=1e-4)
        assert one["cluster"] == pytest.approx(other.observation.cluster[0], abs=1e-4)


def test_impossible_actions_wait_or_start_a_job():
    environment = made()
    environment.reset(seed=1)
    done, steps = False, 0
    while not done and steps < 1000:
        _, reward, done, _, _ = environment.step(0)
        steps += 1
    assert done
    assert np.isfinite(reward)


def test_the_same_seed_draws_the_same_batch():
    found = [made().reset(seed=3)[0]["jobs"].tolist() for _ in range(2)]
    assert found[0] == found[1]
    assert len(draw_batches(SMALL, 1, seed=1).gpus[0]) == 8
