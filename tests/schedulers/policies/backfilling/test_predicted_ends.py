"""Predicted ends: those that are kept between decisions are those that are predicted anew."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.backfilling.predicted_ends import PredictedEnds, end_s
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.testing.random_cases import CLUSTERS, traces
from tests.schedulers.clusters import cluster, job, simulated
from tests.support.slow_tests import examples


class Recorded(Policy):
    """Policy that compares kept with new predictions before each decision of another policy."""

    def __init__(self, policy):
        self._policy, self._ends, self.seen = policy, PredictedEnds(), []
        self.needs = policy.needs

    def decide(self, state, forecasts, rng):
        self.seen.append(list(self._ends.in_order(state, forecasts)))
        again = [
            (end_s(state.job(job_id), status.allocations, state, forecasts), job_id)
            for job_id, status in state.running.items()
        ]
        assert self.seen[-1] == sorted(again)
        return self._policy.decide(state, forecasts, rng)


@settings(deadline=None, max_examples=examples(100))
@given(
    made=traces(),
    devices=CLUSTERS,
    policy=st.sampled_from(("fifo", "srtf", "las", "packing", "elastic")),
    bias=st.sampled_from((1.0, 0.3, 4.0)),
)
def test_kept_predictions_equal_new_ones(made, devices, policy, bias):
    """Jobs start, stop, change their size and their speed, and outrun their forecasts."""
    jobs, duration_s = made
    world = TraceDurations(duration_s)
    forecaster = Noisy(Oracle(world, devices), spread=0.5, bias=bias, seed=0)

    simulated(devices, Recorded(policy_of(policy)), jobs, world, forecaster=forecaster)


def test_ends_are_in_the_order_of_time_and_id():
    jobs = [job("c"), job("a"), job("b"), job("d", 5.0)]
    lengths = {"a": 20.0, "b": 10.0, "c": 10.0, "d": 1.0}
    policy = Recorded(Fifo())

    simulated(cluster(3), policy, jobs, lengths)

    assert policy.seen[1] == [(10.0, "b"), (10.0, "c"), (20.0, "a")]


def test_restarts_and_checkpoints_take_time():
    costs = Checkpointing(interval_s=10.0, cost_s=1.0, restart_s=3.0)
    policy = Recorded(Fifo())

    simulated(
        cluster(1), policy, [job("a", checkpointing=costs), job("b", 1.0)], {"a": 100.0, "b": 1}
    )

    assert policy.seen[1] == [(pytest.approx(110.0), "a")]


def test_other_forecasts_replace_kept_predictions():
    class Unknown:
        def predictions(self, requests):
            return [None] * len(requests)

        def slowdowns(self, requests):
            return [None] * len(requests)

    class Twice(Fifo):
        def __init__(self):
            self.ends, self.seen = PredictedEnds(), []

        def decide(self, state, forecasts, rng):
            unknown = Forecasts(Unknown(), state.cluster)
            for one in (forecasts, unknown, forecasts):
                self.seen.append([at_s for at_s, _ in self.ends.in_order(state, one)])
            return super().decide(state, forecasts, rng)

    policy = Twice()
    simulated(cluster(1), policy, [job("a"), job("b", 1.0)], {"a": 10.0, "b": 1.0})

    assert policy.seen[3:6] == [[10.0], [math.inf], [10.0]]
