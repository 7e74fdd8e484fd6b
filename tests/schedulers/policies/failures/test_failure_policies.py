"""Policies that go by failure rates: choices, avoidance, waiting, intervals, bad inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.job_status import Phase
from presage.schedulers.faults.fault import Fault
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.failures.completion import (
    daly_interval_s,
    daly_intervals_s,
    expected_completion_s,
    expected_completions_s,
)
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.hazards import FixedHazards, clean_rates
from presage.schedulers.policies.failures.least_failing import LeastFailing, Matched
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from tests.schedulers.clusters import cluster, job, simulated

HOUR_S = 3600.0


def placed(simulation):
    """Return the devices of each job's first start."""
    found: dict[str, list[int]] = {}
    for _, what, job_id, more in simulation.log.entries:
        if what == "start":
            found.setdefault(job_id, [one.device for one in more])
    return found


def test_least_failing_takes_the_devices_with_the_lowest_rates():
    policy = LeastFailing(hazards=FixedHazards([3.0e-6, 1e-6, 2e-6, 4e-6]))
    done = simulated(cluster(1, 1, 1, 1), policy, [job("a", gpus=2)], {"a": 5.0})
    assert placed(done) == {"a": [1, 2]}


def test_a_gang_stays_on_the_node_with_the_lowest_total_rate():
    policy = LeastFailing(hazards=FixedHazards([1e-6, 9e-6, 2e-6, 3e-6, 1e-6]))
    done = simulated(cluster(2, 2, 1), policy, [job("a", gpus=2)], {"a": 5.0})
    assert placed(done) == {"a": [2, 3]}


def test_matched_gives_the_longest_job_the_safest_devices():
    rates = FixedHazards([3e-6, 1e-6, 2e-6])
    jobs = [job("short"), job("long"), job("middle")]
    durations = {"short": 1.0, "long": 9.0, "middle": 5.0}
    done = simulated(cluster(1, 1, 1), Matched(hazards=rates), jobs, durations)
    assert placed(done) == {"short": [0], "long": [1], "middle": [2]}


def test_expected_waits_for_a_safe_device_that_is_soon_released():
    rates = FixedHazards([1e-9, 1.0 / HOUR_S])
    jobs = [job("first"), job("second", 1.0)]
    durations = {"first": 0.5 * HOUR_S, "second": 3 * HOUR_S}
    waits = simulated(cluster(1, 1), Expected(hazards=rates), jobs, durations)
    starts = simulated(cluster(1, 1), Expected(patience=0.0, hazards=rates), jobs, durations)
    assert placed(waits)["second"] == [0]
    assert placed(starts)["second"] == [1]


def test_avoidance_has_a_limit_and_lets_no_job_starve():
    rates = FixedHazards([1e-6, 1e-6, 1e-6, 1e-3])
    policy = LeastFailing(avoid=0.25, hazards=rates)
    single = simulated(cluster(1, 1, 1, 1), policy, [job(str(i)) for i in range(4)],
                       {str(i): 5.0 for i in range(4)})  # fmt: skip
    whole = simulated(cluster(1, 1, 1, 1), policy, [job("all", gpus=4)], {"all": 5.0})
    assert all(devices != [3] for devices in placed(single).values())
    assert placed(whole) == {"all": [0, 1, 2, 3]}


def test_a_job_starts_on_avoided_devices_if_all_others_are_down():
    faults = tuple(Fault(0.0, node, repaired=False) for node in range(3))
    policy = LeastFailing(avoid=0.25, hazards=FixedHazards([1e-6, 1e-6, 1e-6, 1e-3]))
    done = simulated(cluster(1, 1, 1, 1), policy, [job("a")], {"a": 5.0}, faults=faults)
    assert placed(done) == {"a": [3]}


def test_the_interval_is_that_of_young_and_daly_for_the_devices():
    rate, costs = 1 / (10 * HOUR_S), Checkpointing(HOUR_S, 60.0, 10.0)
    policy = LeastFailing(sets_interval=True, hazards=FixedHazards([rate]))
    done = simulated(cluster(1), policy, [job("a", checkpointing=costs)], {"a": HOUR_S})
    interval_s = daly_interval_s(rate, 60.0)
    assert interval_s == pytest.approx(math.sqrt(2 * 60.0 / rate), rel=0.03)
    assert done.results[0].end_s == pytest.approx(HOUR_S * (1 + 60.0 / interval_s))


@given(
    work_s=st.floats(60, 1e6), rate=st.floats(1e-9, 1e-5), cost_s=st.floats(1, 600),
    factor=st.sampled_from((0.3, 0.6, 1.7, 3.0)),
)  # fmt: skip
def test_the_interval_is_about_the_best_one(work_s, rate, cost_s, factor):
    best_s = daly_interval_s(rate, cost_s)
    found = [
        expected_completion_s(1e7, rate, one_s, cost_s, 0.0, 0.0)
        for one_s in (best_s, factor * best_s)
    ]
    assert found[0] <= found[1] * (1 + 1e-3)


def test_intervals_of_arrays_are_those_of_each_job():
    rng = np.random.default_rng(4)
    rates = rng.lognormal(-12, 6, 200) * (rng.random(200) > 0.1)
    cost_s = rng.lognormal(4, 3, 200) * (rng.random(200) > 0.1)
    expected = [daly_interval_s(*one) for one in zip(rates.tolist(), cost_s.tolist(), strict=True)]
    assert daly_intervals_s(rates, cost_s).tolist() == expected


@given(work_s=st.floats(1, 1e5), rate=st.floats(0, 1e-4), more=st.floats(1, 10))
def test_the_expected_completion_grows_with_the_rate_and_is_at_least_the_work(work_s, rate, more):
    for costs in ((math.inf, 0.0, 0.0), (600.0, 10.0, 60.0)):
        low = expected_completion_s(work_s, rate, *costs, 3600.0)
        assert low >= work_s * (1 - 1e-9)
        assert expected_completion_s(work_s, rate * more, *costs, 3600.0) >= low * (1 - 1e-9)


def test_expected_completions_of_arrays_are_those_of_each_job_and_rate():
    rng = np.random.default_rng(3)
    jobs = 40
    work_s = rng.lognormal(9, 3, jobs) * (rng.random(jobs) > 0.1)
    interval_s = np.where(rng.random(jobs) < 0.4, math.inf, rng.lognormal(8, 2, jobs))
    cost_s, restart_s = rng.uniform(0, 600, (2, jobs))
    for drawn in (rng.lognormal(-12, 3, (jobs, 7)), np.zeros((jobs, 2)), np.empty((jobs, 0))):
        rates = drawn * (rng.random(drawn.shape) > 0.1)
        found = expected_completions_s(work_s, rates, interval_s, cost_s, restart_s, 3600.0)
        expected = [
            [
                expected_completion_s(*one, 3600.0)
                for one in zip(
                    [work_s[j]] * rates.shape[1], rates[j], [interval_s[j]] * rates.shape[1],
                    [cost_s[j]] * rates.shape[1], [restart_s[j]] * rates.shape[1], strict=True,
                )
            ]
            for j in range(jobs)
        ]  # fmt: skip
        assert found == pytest.approx(np.array(expected).reshape(found.shape), rel=1e-12)


def test_the_expected_completion_without_checkpoints_is_that_of_many_draws():
    rng, rate, work_s, repair_s = np.random.default_rng(1), 1e-4, 8000.0, 500.0
    total_s = np.zeros(50_000)
    runs = np.ones(len(total_s), bool)
    while runs.any():
        fails_s = rng.exponential(1 / rate, len(total_s))
        ends = fails_s >= work_s
        total_s += runs * np.where(ends, work_s, fails_s + repair_s)
        runs &= ~ends
    expected_s = expected_completion_s(work_s, rate, math.inf, 0.0, 0.0, repair_s)
    assert total_s.mean() == pytest.approx(expected_s, rel=0.02)


def test_unknown_rates_become_the_median_and_infinite_ones_finite():
    cleaned = clean_rates(np.array([np.nan, 1e-6, 3e-6, -1.0, np.inf]))
    assert cleaned.tolist() == [3e-6, 1e-6, 3e-6, 3e-6, 1.0]
    assert clean_rates(np.full(3, np.nan)).tolist() == [0.0] * 3


@pytest.mark.parametrize("rates", [[0.0] * 3, [math.nan] * 3, [math.inf] * 3, [0, 1e-9, math.inf]])
@pytest.mark.parametrize("policy", [LeastFailing, Matched, Expected])
@pytest.mark.parametrize("forecaster", [None, NoForecasts()])
def test_bad_rates_and_missing_forecasts_stop_no_job(rates, policy, forecaster):
    jobs = [job(str(i), gpus=1 + i % 3) for i in range(6)]
    done = simulated(
        cluster(1, 1, 1), policy(avoid=0.3, sets_interval=True, hazards=FixedHazards(rates)), jobs,
        {str(i): 5.0 + i for i in range(6)}, forecaster=forecaster,
    )  # fmt: skip
    assert len(done.results) == 6


@pytest.mark.parametrize("policy", [LeastFailing, Matched, Expected])
@pytest.mark.parametrize("bias", [0.1, 1.0, 10.0])
def test_run_times_off_by_a_factor_of_ten_stop_no_job(policy, bias):
    devices, rates = cluster(1, 1, 1, 1), FixedHazards([1e-6, 1e-4, 2e-6, 5e-5])
    jobs = [job(str(i), gpus=1 + i % 4) for i in range(24)]
    world = TraceDurations({str(i): HOUR_S * (1 + i % 7) for i in range(24)})
    exact = Oracle(world, devices)
    off = Noisy(exact, spread=0.0 if bias != 1 else math.log(10), bias=bias, seed=3)
    makespans_s = [
        simulated(devices, policy(hazards=rates), jobs, world, forecaster=one).results[-1].end_s
        for one in (exact, off)
    ]
    assert makespans_s[1] <= 1.5 * makespans_s[0]


@pytest.mark.parametrize("policy", [LeastFailing, Matched, Expected])
def test_jobs_wait_while_all_devices_are_down(policy):
    faults = tuple(
        Fault(at_s, node, repaired=at_s > 1) for at_s in (1.0, 50.0) for node in range(2)
    )
    jobs = [job("runs"), job("waits", 10.0), job("too-large", 10.0, gpus=3)]
    done = simulated(cluster(1, 1), policy(hazards=FixedHazards([1e-6, 1e-5])), jobs,
                     {"runs": 9.0, "waits": 9.0, "too-large": 9.0}, faults=faults)  # fmt: skip
    ends = {one.job.job_id: one.end_s for one in done.results if one.phase == Phase.FINISHED}
    assert ends == {"runs": 59.0, "waits": 59.0}
    assert len(done.results) == 3  # the job that is larger than the cluster is rejected


def test_rates_for_another_number_of_devices_are_rejected():
    with pytest.raises(ConfigError, match="2 failure rates for 3 devices"):
        simulated(cluster(3), LeastFailing(hazards=FixedHazards([0, 0])), [job("a")], {"a": 1.0})


@pytest.mark.parametrize(
    "text", ["least-failing:avoid=1", "least-failing:avoid_above=0.5", "expected:patience=-1"]
)
def test_impossible_parameters_are_rejected(text):
    with pytest.raises(ConfigError, match="must be"):
        policy_of(text)


def test_lost_gpu_hours_and_the_training_time_ratio_of_a_failure():
    costs = Checkpointing(HOUR_S, 0.0, 600.0)
    faults = (Fault(1.5 * HOUR_S, 0, repaired=False), Fault(2 * HOUR_S, 0, repaired=True))
    done = simulated(cluster(2), LeastFailing(), [job("a", gpus=2, checkpointing=costs)],
                     {"a": 3 * HOUR_S}, faults=faults)  # fmt: skip
    metrics = compute_metrics(done)
    lost_h = 2 * (0.5 + 1 / 6)  # half an hour of work and a restart, on two devices
    assert metrics.lost_gpu_hours == pytest.approx(lost_h)
    assert metrics.effective_training_time_ratio == pytest.approx(6 / (6 + lost_h))
    assert metrics.restarts == 1
