"""Elastic policy: jobs shrink to admit others, grow where it pays, and stay on few nodes."""

from __future__ import annotations

import pytest

from presage.errors import ConfigError
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.speedup import Speedup
from presage.schedulers.faults.fault import Fault
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.elastic.device_choice import choose_devices
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.elastic.job_speed import JobSpeed
from presage.schedulers.policies.elastic.pollux_policy import Pollux
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.resize_costs import ResizeCosts
from tests.schedulers.clusters import cluster, job, simulated

ALL = (1 << 99) - 1


class Scaling(TraceDurations):
    """Ground truth with the speed-up 1 + slope (devices - 1), and slower links between nodes."""

    def __init__(self, duration_s, slope=1.0, apart=1.0):
        super().__init__(duration_s)
        self._slope, self._apart = slope, apart

    def solo_s(self, job, kind, gpus):
        speeds = [1 + self._slope * (size - 1) for size in (job.gpus, gpus)]
        return self._duration_s[job.job_id] * speeds[0] / speeds[1]

    def spread(self, job, kind, gpus, nodes):
        return self._apart


def events(done, job_id):
    return [
        (at_s, event, len(details) if event in ("start", "resize") else None)
        for at_s, event, one, details in done.log.entries
        if one == job_id and event != "submit"
    ]


def end_s(done, job_id):
    return next(one.end_s for one in done.results if one.job.job_id == job_id)


def test_a_running_job_shrinks_to_admit_a_short_one_and_grows_back():
    jobs = [job("long", gpus=4, min_gpus=1), job("short", 100.0)]
    done = simulated(cluster(4), Elastic(hold_s=0.0), jobs, {"long": 1000.0, "short": 50.0})

    assert events(done, "long") == [
        (0.0, "start", 4), (100.0, "resize", 3), (150.0, "resize", 4),
        (pytest.approx(1012.5 + 2 * 0.06, abs=0.02), "finish", None),
    ]  # fmt: skip
    assert end_s(done, "short") == 150.0  # it did not wait
    assert done.preemptions == 0


def test_a_job_grows_to_twice_its_request_at_first_and_waits_between_two_changes():
    one = job("a", gpus=1, max_gpus=8)
    costs = ResizeCosts(measuring_s=5.0)
    done = simulated(cluster(8), Elastic(hold_s=60.0), [one], {"a": 1000.0}, resize_costs=costs)

    assert events(done, "a")[:-1] == [
        (0.0, "start", 2), (60.0, "resize", 4), (120.0, "resize", 8),
    ]  # fmt: skip


def test_a_job_does_not_grow_where_it_gains_nothing():
    one = job("a", gpus=2, max_gpus=4)
    done = simulated(cluster(4), Elastic(), [one], Scaling({"a": 1000.0}, slope=0.0))

    assert all(size in (None, 1, 2) for _, _, size in events(done, "a"))


def test_a_job_stays_on_one_node_where_links_between_nodes_are_slow():
    one = job("a", gpus=2, min_gpus=1, max_gpus=8)
    truth = Scaling({"a": 1000.0}, apart=5.0)
    done = simulated(cluster(4, 4), Elastic(hold_s=0.0), [one], truth)

    held = [details for _, event, _, details in done.log.entries if event in ("start", "resize")]
    assert max(len(allocations) for allocations in held) == 4
    for allocations in held:
        assert len({allocation.device // 4 for allocation in allocations}) == 1


def test_latency_sensitive_jobs_take_devices_of_others_at_once():
    jobs = [
        job("a", gpus=2, min_gpus=1), job("b", gpus=2),
        job("urgent", 10.0, gpus=2, latency_sensitive=True),
    ]  # fmt: skip
    done = simulated(cluster(2, 2), Elastic(), jobs, {"a": 100.0, "b": 100.0, "urgent": 500.0})

    assert events(done, "urgent")[0] == (10.0, "start", 2)
    assert end_s(done, "urgent") == 510.0


def test_an_elastic_job_continues_after_a_failure_and_grows_when_the_node_is_back():
    faults = [Fault(100.0, 0, repaired=False), Fault(200.0, 0, repaired=True)]
    one = job("a", gpus=4, min_gpus=1)
    done = simulated(cluster(2, 2), Elastic(hold_s=0.0), [one], {"a": 1000.0}, faults=faults)

    logged = [event for _, event, job_id, _ in done.log.entries if job_id == "a"]
    assert logged == ["submit", "start", "shrink", "resize", "finish"]
    assert end_s(done, "a") == pytest.approx(1050.0 + 0.5 / 2 + 0.06, abs=0.5)


def test_jobs_of_fixed_size_are_not_resized():
    jobs = [job("a", gpus=2), job("b", 1.0, gpus=3), job("c", 2.0)]
    done = simulated(cluster(2, 2), Elastic(), jobs, {"a": 100.0, "b": 40.0, "c": 5.0})

    assert not [entry for entry in done.log.entries if entry[1] == "resize"]
    assert len(done.results) == 3


def test_without_forecasts_jobs_keep_their_requests_at_most():
    jobs = [job(str(i), gpus=2, min_gpus=1, max_gpus=8) for i in range(3)]
    durations = {one.job_id: 100.0 for one in jobs}
    done = simulated(cluster(8), Elastic(), jobs, durations, forecaster=NoForecasts())

    assert len(done.results) == 3
    assert all(len(d) <= 2 for _, e, _, d in done.log.entries if e in ("start", "resize"))


def test_pollux_shares_devices_between_jobs_whatever_they_have_left():
    jobs = [job("long", gpus=4, min_gpus=1), job("short", gpus=4, min_gpus=1)]
    truth = Scaling({"long": 10_000.0, "short": 10.0}, slope=0.5)
    done = simulated(cluster(8), Pollux(hold_s=0.0), jobs, truth)
    shared = simulated(cluster(4), Pollux(hold_s=0.0), jobs, truth)

    assert {size for _, _, size in events(done, "long") if size} == {4}
    assert events(shared, "long")[0] == events(shared, "short")[0] == (0.0, "start", 2)


@pytest.mark.parametrize("values", [{"hold_s": -1.0}, {"gain": float("nan")}])
def test_an_invalid_parameter_is_rejected(values):
    with pytest.raises(ConfigError, match="must be a finite number >= 0"):
        Elastic(**values)


# Devices --------------------------------------------------------------------------------------


def test_devices_are_chosen_on_the_nodes_of_the_job_then_on_few_others():
    devices = cluster(4, 4, 4)
    idle = IdleDevices(devices)
    idle.take([0, 1, 4, 8, 9])

    assert choose_devices(2, [], idle, devices, ALL) == [2, 3]  # the node that it fills
    assert choose_devices(3, [], idle, devices, ALL) == [5, 6, 7]
    assert choose_devices(3, [0], idle, devices, ALL) == [0, 2, 3]
    assert choose_devices(5, [0], idle, devices, ALL) == [0, 2, 3, 10, 11]
    assert choose_devices(1, [0, 4, 5], idle, devices, ALL) == [4]
    assert choose_devices(8, [], idle, devices, ALL) is None
    assert idle.count == 7


# Speeds ---------------------------------------------------------------------------------------


class Linear:
    def __init__(self, sync_share=None):
        self.sync_share = sync_share

    def predictions(self, requests):
        return [RuntimePrediction(100.0, 1000, 1)] * len(requests)

    def slowdowns(self, requests):
        return [None] * len(requests)

    def speedups(self, requests):
        return [Speedup(one.gpus / one.job.gpus, 0.5, 2.0, self.sync_share) for one in requests]


def speed_of(measured_s, sync_share=None):
    one = job("a", gpus=2, max_gpus=8)
    return JobSpeed(one, "v100", Forecasts(Linear(sync_share), cluster(4, 4)), measured_s)


def test_speeds_are_predicted_until_they_are_measured():
    assert speed_of({}).run_s((4, 1)) == 50.0
    assert speed_of({(2, 1): 130.0}).run_s((2, 1)) == 130.0


def test_a_measured_size_corrects_the_others_and_most_those_with_the_same_links():
    fitted = speed_of({(2, 1): 100.0, (4, 2): 150.0})  # apart three times as slow as predicted

    within, between = fitted.run_s((3, 1)) / (200 / 3), fitted.run_s((8, 2)) / 25.0
    assert 1.0 < within < 1.7
    assert 1.3 * within < between < 3.0
    assert fitted.largest_measured == 4


def test_two_measured_sizes_predict_others_of_a_job_that_is_slower_than_predicted():
    fitted = speed_of({(1, 1): 400.0, (2, 1): 200.0}, sync_share=0.0)

    assert fitted.run_s((4, 1)) == pytest.approx(100.0, rel=0.1)
