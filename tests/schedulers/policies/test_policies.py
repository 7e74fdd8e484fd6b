"""Policies: what each is known for; test_check_policy.py has the contract of all of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job_status import Phase
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.backfilling import backfill
from presage.schedulers.policies.backfilling.backfill import Backfill
from presage.schedulers.policies.backfilling.reservations import Reservations
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.least_attained_service import LeastAttainedService
from presage.schedulers.policies.policy_registry import POLICIES, policy_of
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.policies.shortest_first import ShortestFirst
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.testing.case import can_run
from presage.testing.random_cases import CLUSTERS, cluster_of, traces
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.support.slow_tests import examples


class AnyForecasts:
    """Says whatever it was made with of every job: nonsense, too."""

    def __init__(self, predictions):
        self._predictions = predictions

    def predictions(self, requests):
        return [self._predictions[int(one.job_id) % len(self._predictions)] for one, _ in requests]

    def slowdowns(self, requests):
        predictions = (None, [1.0], [float("nan"), 1.2], [0.5, 1.1], [1.3, 1.0])
        return [
            predictions[sum(int(one.job_id) for one in jobs) % len(predictions)]
            for _, jobs in requests
        ]


class ByModel:
    """Forecaster with equal forecasts for all jobs of a model."""

    def __init__(self, **predictions):
        self._predictions = predictions

    def predictions(self, requests):
        return [self._predictions.get(one.model) for one, _ in requests]

    def slowdowns(self, requests):
        return [[1.2] * len(jobs) for _, jobs in requests]


class Forgetful(Sharing):
    """Remembers nothing from one decision to the next."""

    def decide(self, state, forecasts, rng):
        self._workload_keys = self._passed = None
        return super().decide(state, forecasts, rng)


@settings(deadline=None, max_examples=examples(150))
@given(
    made=traces(sizes=(1, 1, 1, 1, 2, 3)),
    devices=CLUSTERS,
    milli=st.tuples(*[st.sampled_from((100, 400, 700))] * 2),
    gib=st.tuples(*[st.sampled_from((2, 7, 13))] * 2),
    ageing_s=st.sampled_from((math.inf, 5.0, 2.0)),
    ties=st.sampled_from(("first", "random")),
)
def test_what_is_remembered_between_decisions_changes_none(
    made, devices, milli, gib, ageing_s, ties
):
    jobs, ground_truth = made
    predictions = ByModel(
        **{
            model: RuntimePrediction(20.0, compute, memory * GIB, high_s=25.0)
            for model, compute, memory in zip("ab", milli, gib, strict=True)
        }
    )

    def log(policy):
        return [*simulated(devices, policy, jobs, ground_truth, forecaster=predictions).log.lines()]

    found = log(Sharing(home_s=4.0, ageing_s=ageing_s, ties=ties))
    assert found == log(Forgetful(home_s=4.0, ageing_s=ageing_s, ties=ties))


def test_what_is_remembered_changes_no_decision_about_a_thousand_full_nodes():
    """Jobs are late, shrunk, evicted and started again on all nodes."""
    drawn = random.Random(1)
    jobs = [
        job(f"j{i}", 2.0 * (i // 100), model=drawn.choice("abc"), latency_sensitive=i % 3 == 0)
        for i in range(4_000)
    ]
    ground_truth = {one.job_id: drawn.uniform(30.0, 90.0) for one in jobs}
    predictions = ByModel(
        a=RuntimePrediction(50.0, 700, 6 * GIB, high_s=55.0),
        b=RuntimePrediction(60.0, 400, 9 * GIB, high_s=66.0),
        c=RuntimePrediction(70.0, 200, 5 * GIB, high_s=80.0),
    )
    devices = Cluster(tuple(Node(f"n{i}", 1, "v100", 16 * GIB) for i in range(1_000)))

    def run(policy):
        return simulated(
            devices, policy, jobs, ground_truth, forecaster=predictions, pass_interval_s=2.0
        )

    found = run(Sharing())
    assert found.preemptions > 100
    assert [*found.log.lines()] == [*run(Forgetful()).log.lines()]


@pytest.mark.parametrize("name", POLICIES)
def test_an_elastic_job_larger_than_the_cluster_gets_all_of_it(name):
    jobs = [job("large", gpus=8, min_gpus=2), job("small", 1.0)]
    done = simulated(cluster(2, 2), POLICIES[name](), jobs, {"large": 10.0, "small": 5.0})
    ends = {one.job.job_id: one.end_s for one in done.results}
    expected = {
        "srtf": {"large": 25.0, "small": 6.0},
        # From 1 s on it has three devices: 3 / 80 of it a second, after a resize of 0.06 s.
        "elastic": {"large": pytest.approx(1.06 + 0.95 * 80 / 3), "small": 6.0},
    }
    expected["pollux"] = expected["elastic"]
    assert ends == expected.get(name, {"large": 20.0, "small": 25.0})


@pytest.mark.parametrize("name", POLICIES)
def test_no_job_is_placed_on_a_device_with_less_memory_than_requested(name):
    devices = Cluster((Node("n0", 1, "k80", 12 * GIB), Node("n1", 2, "v100", 16 * GIB)))
    jobs = [job("a", memory_bytes=14 * GIB), job("b", gpus=3, memory_bytes=14 * GIB)]
    done = simulated(devices, POLICIES[name](), jobs, {"a": 10.0, "b": 10.0})
    starts = [more[0].device for _, what, _, more in done.log.entries if what == "start"]
    assert starts == [1] or (name == "random" and starts == [2])
    rejected = [more for _, what, _, more in done.log.entries if what == "reject"]
    assert rejected == ["the gang needs 3 devices, and the cluster has 2 for it"]


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(("v100", "k80"))), min_size=1, max_size=6
    ),
    gpus=st.integers(1, 36),
    kinds=st.sampled_from(((), ("v100",), ("k80",))),
)
def test_a_gang_fits_on_an_empty_cluster_exactly_if_there_are_enough_devices(sizes, gpus, kinds):
    devices, one = cluster_of(*sizes), job("a", gpus=gpus, kinds=kinds)
    allocations = place_consolidated(one, devices, IdleDevices(devices))
    assert (allocations is not None) == can_run(one, devices)
    if allocations is not None:
        assert len({allocation.device for allocation in allocations}) == gpus
        assert all(
            not kinds or devices.kind_of(allocation.device) in kinds for allocation in allocations
        )


def starts_of(done):
    return {entry[2]: entry[0] for entry in reversed(done.log.entries) if entry[1] == "start"}


BLOCKED = [job("0"), job("1", 1.0, gpus=2), job("2", 2.0), job("3", 3.0)]
LENGTHS = {"0": 10.0, "1": 10.0, "2": 8.0, "3": 20.0}


def test_best_effort_does_not_overtake_a_latency_sensitive_job_that_would_fit():
    urgent = {"latency_sensitive": True}
    jobs = [job("0"), job("1", **urgent), job("2", gpus=4, **urgent), job("3", **urgent)]
    lengths = {"0": 1.0, "1": 8.0, "2": 1.0, "3": 5000.0}

    # The third may not delay the second, which waits for all devices until the first is over.
    starts = starts_of(simulated(cluster(2, 2), POLICIES["backfill"](), jobs, lengths))
    assert starts == {"1": 0.0, "2": 8.0, "3": 9.0, "0": 9.0}


def test_strict_policies_allow_no_overtaking():
    assert starts_of(simulated(cluster(2), Fifo(), BLOCKED, LENGTHS)) == {
        "0": 0.0, "1": 10.0, "2": 20.0, "3": 20.0
    }  # fmt: skip


def test_backfilling_fills_the_gap_with_jobs_that_end_in_time():
    assert starts_of(simulated(cluster(2), Backfill(), BLOCKED, LENGTHS)) == {
        "0": 0.0, "1": 10.0, "2": 2.0, "3": 20.0
    }  # fmt: skip


def test_backfilling_uses_devices_that_the_head_will_not_get():
    jobs = [job("0", gpus=2), job("1", gpus=1), job("2", 1.0, gpus=2), job("3", 2.0)]
    lengths = {"0": 10.0, "1": 30.0, "2": 5.0, "3": 99.0}
    # 2 waits for the first node; 3 is long, and gets the other device of job 1's node.
    assert starts_of(simulated(cluster(2, 2), Backfill(), jobs, lengths)) == {
        "0": 0.0, "1": 0.0, "2": 10.0, "3": 2.0
    }  # fmt: skip


@settings(deadline=None, max_examples=examples(60))
@given(made=traces())
def test_with_true_forecasts_backfilling_does_not_delay_the_head(made):
    """The blocked head of the queue starts no later than predicted."""
    jobs, ground_truth = made
    promised: dict[str, float] = {}

    class Notes(Backfill):
        def _reservation(self, head, *arguments):
            at_s, kept = super()._reservation(head, *arguments)
            promised.setdefault(head.job_id, at_s)
            return at_s, kept

    calm = [job(one.job_id, one.submit_s, gpus=one.gpus) for one in jobs]
    done = simulated(cluster(2, 2), Notes(), calm, ground_truth)
    for job_id, start_s in starts_of(done).items():
        assert start_s <= promised.get(job_id, start_s) + 1e-6


def test_shortest_first_serves_by_forecast_and_unknown_jobs_last():
    jobs = [job("0"), job("1", 1.0), job("2", 1.0), job("3", 1.0)]
    predictions = [
        RuntimePrediction(5.0, 1000, 1),
        None,
        RuntimePrediction(9.0, 1000, 1),
        RuntimePrediction(7.0, 1000, 1),
    ]
    done = simulated(
        cluster(1),
        ShortestFirst(),
        jobs,
        dict.fromkeys("0123", 10.0),
        forecaster=AnyForecasts(predictions),
    )
    assert [one.job.job_id for one in done.results] == ["0", "3", "2", "1"]


def test_shortest_remaining_first_preempts_jobs_with_more_remaining_time():
    jobs = [job("long"), job("short", 10.0), job("longer", 11.0)]
    ground_truth = {"long": 100.0, "short": 20.0, "longer": 95.0}
    done = simulated(cluster(1), ShortestRemainingFirst(), jobs, ground_truth)

    # "long" has 90 s left when "short" comes, and still less than "longer" afterwards.
    assert [(one.job.job_id, one.end_s) for one in done.results] == [
        ("short", 30.0), ("long", 120.0), ("longer", 215.0)
    ]  # fmt: skip


def test_least_attained_service_serves_young_jobs_first_without_forecasts():
    jobs = [job("old"), job("young", 500.0)]
    ground_truth = {"old": 5000.0, "young": 50.0}
    done = simulated(cluster(1), LeastAttainedService(threshold_s=1000.0), jobs, ground_truth)

    # At 1,000 s the old one has had its share, and the other one is let in.
    assert [(one.job.job_id, one.end_s) for one in done.results] == [
        ("young", 1050.0),
        ("old", 5050.0),
    ]


@pytest.mark.parametrize("name", ["srtf", "las"])
def test_a_job_that_does_not_fit_blocks_the_jobs_behind_it_unless_it_is_skipped(name):
    jobs = [job("runs", 0, gpus=3), job("wide", 1, gpus=2), job("small", 2)]
    lengths = {"runs": 10.0, "wide": 20.0, "small": 30.0}

    strict = simulated(cluster(4), policy_of(name), jobs, lengths)
    skipping = simulated(cluster(4), policy_of(f"{name}:skips_unfit=true"), jobs, lengths)

    assert starts_of(strict) == {"runs": 0, "wide": 10, "small": 10}
    assert starts_of(skipping) == {"runs": 0, "wide": 10, "small": 2}


@pytest.mark.parametrize("name", ["srtf", "las"])
def test_no_best_effort_job_is_started_in_place_of_a_skipped_latency_sensitive_gang(name):
    jobs = [
        job("a", 0, gpus=2), job("b", 0, gpus=2),  # one device of each node is left
        job("urgent", 1, gpus=2, latency_sensitive=True), job("small", 2),
    ]  # fmt: skip
    lengths = dict.fromkeys(("a", "b", "urgent", "small"), 10.0)

    done = simulated(cluster(3, 3), policy_of(f"{name}:skips_unfit=true"), jobs, lengths)

    assert starts_of(done)["urgent"] == 1  # it preempts
    assert {one.phase for one in done.results} == {Phase.FINISHED}


def test_forecasts_request_a_batch_once_and_replace_invalid_numbers():
    requests = []

    class Counting(Oracle):
        def predictions(self, pairs):
            requests.append(len(pairs))
            return [RuntimePrediction(float("nan"), -1, -1)] * len(pairs)

    devices = cluster(1)
    forecasts = Forecasts(Counting(TraceDurations({}), devices), devices)
    jobs = [job(str(i)) for i in range(10_000)]
    forecasts.expect(jobs)

    assert {forecasts.prediction(one, "v100") for one in jobs} == {
        RuntimePrediction(float("inf"), 1000, devices.nodes[0].memory_bytes)
    }
    assert requests == [10_000]


def test_an_aged_job_is_drained_for_even_among_jobs_submitted_together():
    done = simulated(cluster(1), POLICIES["las"](), [job("a"), job("b")], {"a": 1e5, "b": 100.0})
    assert starts_of(done)["b"] == 3600.0


def test_only_jobs_whose_devices_are_used_are_preempted():
    jobs = [job("x", gpus=7), job("a"), job("b", gpus=8), job("n", 10.0, gpus=8)]
    lengths = {"x": 110.0, "a": 1000.0, "b": 900.0, "n": 100.0}
    done = simulated(cluster(8, 8), POLICIES["srtf"](), jobs, lengths)
    assert [entry[2] for entry in done.log.entries if entry[1] == "preempt"] == ["b"]


def test_a_preempted_job_queues_by_its_key():
    # The third takes a device of the first; what is left of that is not for the last.
    jobs = [job("0", latency_sensitive=True), job("1", latency_sensitive=True, gpus=2),
            job("2", 1.0), job("3", 2.0, gpus=2, latency_sensitive=True)]  # fmt: skip
    lengths = {"0": 1000.0, "1": 1000.0, "2": 5.0, "3": 10.0}
    done = simulated(cluster(1, 2), POLICIES["srtf"](), jobs, lengths)
    assert all(one.phase is Phase.FINISHED for one in done.results)
    assert starts_of(done)["2"] > 2.0


@pytest.mark.parametrize("name", ["best-fit", "bin-packing"])
def test_no_best_effort_job_takes_devices_of_a_latency_sensitive_gang_on_one_node(name):
    jobs = [job("o1", gpus=3), job("x1"), job("o2", gpus=3), job("x2"),
            job("urgent", 5.0, gpus=2, latency_sensitive=True),
            job("b", 5.0, gpus=2, memory_bytes=16 * GIB)]  # fmt: skip
    lengths = {"o1": 1000.0, "x1": 10.0, "o2": 1000.0, "x2": 10.0, "urgent": 10.0, "b": 10.0}
    done = simulated(cluster(4, 4), POLICIES[name](), jobs, lengths)
    assert starts_of(done)["urgent"] <= starts_of(done)["b"]


@settings(deadline=None, max_examples=examples(100))
@given(made=traces(), devices=CLUSTERS)
def test_backfilling_delays_no_job_beyond_its_predicted_start(made, devices):
    """With exact forecasts the head starts no later than its reservation."""
    jobs, ground_truth = made
    promised: dict[str, float] = {}

    class Promises(Backfill):
        def _reservation(self, head, *others):
            found = super()._reservation(head, *others)
            promised[head.job_id] = min(found[0], promised.get(head.job_id, math.inf))
            return found

    plain = [replace(one, latency_sensitive=False, priority=0) for one in jobs]
    starts = starts_of(simulated(devices, Promises(), plain, ground_truth))
    for job_id, at_s in promised.items():
        assert starts[job_id] <= at_s + 1e-6


def test_reservations_for_all_delay_no_second_job_that_waits():
    """A job that ends before the first blocked job starts may still delay the one behind that."""
    jobs = [job("0", gpus=2), job("1", 1.0, gpus=3), job("2", 2.0, gpus=4), job("3", 3.0)]
    lengths = {"0": 10.0, "1": 10.0, "2": 50.0, "3": 60.0}

    first, every = (
        starts_of(simulated(cluster(4), Backfill(reserve=reserve), jobs, lengths))
        for reserve in ("first", "all")
    )

    # Beside job 1 a device is left until job 2 begins, which takes all devices at 20 s.
    assert first == {"0": 0.0, "1": 10.0, "2": 63.0, "3": 3.0}
    assert every == {"0": 0.0, "1": 10.0, "2": 20.0, "3": 70.0}


@settings(deadline=None, max_examples=100)
@given(made=traces(), devices=CLUSTERS)
def test_reservations_for_all_are_kept(made, devices):
    """With exact forecasts each job starts no later than the first reservation says."""
    jobs, ground_truth = made
    promised: dict[str, float] = {}

    class Promises(Reservations):
        def earliest(self, job, duration_s):
            found = super().earliest(job, duration_s)
            if found is not None:
                promised.setdefault(job.job_id, found[0])
            return found

    plain = [replace(one, latency_sensitive=False, priority=0) for one in jobs]
    with patch.object(backfill, "Reservations", Promises):
        starts = starts_of(simulated(devices, Backfill(reserve="all"), plain, ground_truth))
    for job_id, at_s in promised.items():
        assert starts[job_id] <= at_s + 1e-6


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_idle_devices_equal_their_bits(sizes, data):
    devices = cluster(*sizes)
    taken = data.draw(st.sets(st.integers(0, devices.devices - 1)))
    idle = IdleDevices(devices)
    idle.take(sorted(taken))

    again = IdleDevices.of_bits(devices, idle.bits())

    assert (again.count, again.bits()) == (idle.count, idle.bits())
    assert [again.best_fit_node(n) for n in range(1, max(sizes) + 1)] == [
        idle.best_fit_node(n) for n in range(1, max(sizes) + 1)
    ]
