"""Predicted ends: those that are kept between decisions are those that are predicted anew."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.backfilling.backfill import Backfill
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
        assert {type(at_s) for at_s, _ in self.seen[-1]} <= {float}
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


def test_with_exact_forecasts_the_prediction_after_a_restart_is_the_end():
    costs = Checkpointing(interval_s=10.0, cost_s=1.0, restart_s=3.0)
    long = [job(f"{at_s}", float(at_s)) for at_s in range(26, 61)]  # some arrive in the restart
    jobs = [job("a", checkpointing=costs), job("b", 25.0), *long]
    policy = Recorded(policy_of("srtf"))

    lengths = {"a": 100.0, "b": 5.0, **{one.job_id: 500.0 for one in long}}
    done = simulated(cluster(1), policy, jobs, lengths)

    at_s = {(event, job_id): at_s for at_s, event, job_id, _ in done.log.entries}
    assert at_s["start", "a"] > at_s["start", "b"]  # its second start
    ends_s = [seen[0][0] for seen in policy.seen if seen and seen[0][1] == "a"]
    assert ends_s[-30:-20] == [pytest.approx(at_s["finish", "a"])] * 10


def test_more_jobs_than_at_first_are_kept_apart():
    jobs = [job(f"{i}", float(i)) for i in range(200)]
    lengths = {one.job_id: 150.0 + 7.0 * (int(one.job_id) % 13) for one in jobs}
    policy = Recorded(Fifo())

    simulated(cluster(150), policy, jobs, lengths)

    assert max(map(len, policy.seen)) > 130


def test_one_policy_serves_several_simulations():
    policy = Recorded(Fifo())

    for length_s in (10.0, 20.0):
        simulated(cluster(1), policy, [job("a"), job("b", 1.0)], {"a": length_s, "b": 1.0})

    assert next(seen for seen in policy.seen if seen) == [(10.0, "a")]
    assert (20.0, "a") in [end for seen in policy.seen for end in seen]


class Deciding(Fifo):
    """Policy that calls a function with kept predictions before each decision."""

    def __init__(self, check):
        self.ends, self.seen, self._check = PredictedEnds(), [], check

    def decide(self, state, forecasts, rng):
        self.seen.append(self._check(self.ends, state, forecasts))
        return super().decide(state, forecasts, rng)


def test_other_forecasts_replace_kept_predictions():
    def check(ends, state, forecasts):
        unknown = Forecasts(NoForecasts(), state.cluster)
        return [
            [at_s for at_s, _ in ends.in_order(state, one)]
            for one in (forecasts, unknown, forecasts)
        ]

    policy = Deciding(check)
    simulated(cluster(1), policy, [job("a"), job("b", 1.0)], {"a": 10.0, "b": 1.0})

    assert policy.seen[1] == [[10.0], [math.inf], [10.0]]


class Changing:
    """Forecaster whose predictions double with each request, or that raises an error."""

    def __init__(self):
        self.runtime_s, self.error = 10.0, None

    def predictions(self, requests):
        if self.error is not None:
            raise self.error
        self.runtime_s *= 2
        return [RuntimePrediction(self.runtime_s, 1000, 0)] * len(requests)

    def slowdowns(self, requests):
        return [None] * len(requests)


def test_forecasts_that_are_requested_again_replace_kept_predictions():
    def check(ends, state, forecasts):
        before = list(ends.in_order(state, forecasts))
        for job_id in state.running:
            forecasts.forget(state.job(job_id))
        return before, list(ends.in_order(state, forecasts))

    policy = Deciding(check)
    jobs = [job("a"), job("b", 1.0)]
    simulated(cluster(1), policy, jobs, {"a": 10.0, "b": 1.0}, forecaster=Changing())

    before, after = policy.seen[1]
    # After the first of 10 s, nine tenths are left of 20, then of 40 s.
    assert (before, after) == ([(19.0, "a")], [(37.0, "a")])


def test_predictions_are_complete_after_an_error():
    forecaster = Changing()

    def check(ends, state, forecasts):
        for job_id in state.running:
            forecasts.forget(state.job(job_id))
        forecaster.error = TypeError("no number")
        if len(state.running):
            with pytest.raises(TypeError):
                list(ends.in_order(state, forecasts))
        forecaster.error = None
        again = sorted(
            (end_s(state.job(job_id), status.allocations, state, forecasts), job_id)
            for job_id, status in state.running.items()
        )
        assert list(ends.in_order(state, forecasts)) == again
        return len(again)

    policy = Deciding(check)
    jobs = [job(f"{i}", float(i)) for i in range(6)]
    lengths = dict.fromkeys((one.job_id for one in jobs), 20.0)
    simulated(cluster(4), policy, jobs, lengths, forecaster=forecaster)

    assert max(policy.seen) == 4


def test_a_used_policy_is_copied_without_its_predictions():
    class Locked(Changing):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()  # which no copy can have

    policy = Backfill()
    jobs = [job("a", gpus=1), job("b", 1.0, gpus=2), job("c", 2.0)]
    simulated(cluster(2), policy, jobs, dict.fromkeys("abc", 10.0), forecaster=Locked())

    copied = copy.deepcopy(policy)

    assert len(pickle.dumps(policy)) < 1000
    assert starts(copied, jobs) == starts(Backfill(), jobs)


def starts(policy, jobs):
    """Return the log of a simulation."""
    return list(simulated(cluster(2), policy, jobs, dict.fromkeys("abc", 10.0)).log.entries)
