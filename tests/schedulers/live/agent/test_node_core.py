"""Decisions of an agent about its own node (requirement N8), without processes."""

from __future__ import annotations

import pytest

from presage.errors import ServiceError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.live.agent.controller_forecasts import (
    ControllerForecaster,
    LocalForecaster,
    ReceivedForecasts,
)
from presage.schedulers.live.agent.node_core import LOCAL_PATIENCE_S, PATIENCE_S, NodeCore
from presage.schedulers.live.agent.node_task import Observation, Step
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.live.protocol.wire import write_allocations, write_job, write_prediction
from presage.schedulers.v1 import cluster_pb2 as pb

GIB = 2**30
CHECK_S = 10.0


class Second:
    """Local predictor of the agent; has forecasts only for jobs of the model "known"."""

    def __init__(self, runtime_s=50.0, milli=200):
        self._runtime_s, self._milli = runtime_s, milli

    def predictions(self, asked):
        runtime_s = self._runtime_s
        known = RuntimePrediction(runtime_s, self._milli, GIB, high_s=1.2 * runtime_s)
        return [known if job.model == "known" else None for job, _ in asked]

    def slowdowns(self, asked):
        return [None] * len(asked)


class Node:
    """Core of an agent with two V100s, and the commands that a controller would send."""

    def __init__(self, second=None, kinds=("v100", "v100")):
        self.known_forecasts = {}
        self.orders = {}
        told = ReceivedForecasts()
        first = ControllerForecaster(told)
        asked = LocalForecaster(told, second) if second else first
        devices = [(kind, 16 * GIB) for kind in kinds]
        self.core = NodeCore("a", devices, self._forecasts(asked, first), told)

    def _forecasts(self, forecaster, otherwise):
        def of(cluster, now_s):
            if cluster not in self.known_forecasts:
                self.known_forecasts[cluster] = Forecasts(forecaster, cluster, otherwise)
            return self.known_forecasts[cluster]

        return of

    def order(self, name, milli, *, device=0, model="", runtime_s=100.0, others=None, **values):
        submitted = SubmittedJob(Job(name, 0.0, model=model, **values), ("train",))
        told = [
            write_prediction(kind, RuntimePrediction(of_kind_s, milli, GIB, high_s=1.2 * of_kind_s))
            for kind, of_kind_s in {"v100": runtime_s, **(others or {})}.items()
        ]
        self.orders[name] = pb.TaskCommand(
            job=write_job(submitted), attempt=1, predictions=told,
            allocations=write_allocations([Allocation(device, milli, GIB)]),
        )  # fmt: skip

    def apply(self, now_s, withdrawn=()):
        sharing = pb.Sharing(step_milli=100, least_milli=100, check_s=CHECK_S, overcommit=1.0)
        orders = pb.NodeCommands(
            version=1, tasks=self.orders.values(), sharing=sharing, withdrawn_devices=withdrawn
        )
        self.core.apply(orders, now_s)
        self.core.decide(now_s)
        for task in tuple(self.core.ready()):
            self.core.mark_started(task.name)

    def runs(self, now_s, *, usage_milli=None, **done):
        for name, part in done.items():
            milli = self.allocation(name).compute_milli if usage_milli is None else usage_milli
            self.core.observe(
                (name, 1), Observation(now_s, part, 0.0, milli, GIB // 2, GIB // 2), now_s
            )
        self.core.decide(now_s)

    def task(self, name):
        return self.core.tasks[name, 1]

    def allocation(self, name):
        return self.task(name).allocations[0]


def test_n8_topology_sensing_an_agent_tracks_the_free_capacity_of_each_device():
    node = Node()
    for name in ("one", "two", "three"):  # the controller selects device 0 for all
        node.order(name, 600, latency_sensitive=True)
    node.apply(1.0)

    assert {node.allocation("one").device, node.allocation("two").device} == {0, 1}
    assert node.task("three").step is Step.WAITING
    assert not node.task("three").end

    node.core.decide(1.0 + PATIENCE_S + 1)  # no capacity becomes free: return the task
    (back,) = [one for one in node.core.report() if one.job_id == "three"]
    assert back.exit.requested
    assert back.reason == "its node had no free capacity for it"


def test_n8_the_second_predictor_takes_precedence_over_the_controllers_forecast():
    node = Node(Second())
    node.order("known", 900, model="known")
    node.order("other", 700)
    node.apply(1.0)

    assert node.allocation("known").compute_milli == 200
    assert node.allocation("other").compute_milli == 700


def test_n8_the_controllers_forecast_applies_if_the_second_predictor_finds_no_capacity():
    node = Node(Second(milli=900), kinds=("v100",))
    node.order("beside", 600)
    node.order("known", 300, model="known")
    node.apply(1.0)
    assert node.task("known").step is Step.WAITING

    node.core.decide(1.0 + LOCAL_PATIENCE_S + 0.5)
    node.core.decide(1.0 + LOCAL_PATIENCE_S + 1.0)
    assert node.task("known").step is Step.ALLOCATED
    assert node.allocation("known").compute_milli == 300


class Silent:
    """Local predictor that always fails, and counts its calls."""

    def __init__(self, error=None):
        self.asked = 0
        self._error = error or ServiceError("no response")

    def predictions(self, asked):
        self.asked += 1
        raise self._error

    def slowdowns(self, asked):
        self.asked += 1
        raise self._error


def test_c2_a_task_gets_a_device_of_the_kinds_that_the_controller_allows():
    node = Node(kinds=("k80", "v100"))
    node.order("there", 100, device=1, latency_sensitive=True, kinds=("v100",))
    node.order("huge", 300, device=1, latency_sensitive=True, kinds=("v100",))
    node.apply(1.0)
    assert (
        node.allocation("there").device == node.allocation("huge").device == 1
    )  # although the other device is idle


@pytest.mark.parametrize("error", [ServiceError("no response"), ValueError("NaN %")], ids=str)
def test_n8_the_controllers_forecast_applies_if_the_second_predictor_fails(error):
    node = Node(Silent(error))
    node.order("job", 300, latency_sensitive=True)
    node.apply(1.0)
    assert node.allocation("job").compute_milli == 300

    node.runs(130.0, job=0.5)  # 100 s are predicted; the SLO is 120 s
    assert node.task("job").slo_violated


def test_n8_a_second_predictor_that_fails_is_not_called_for_each_task():
    second = Silent()
    node = Node(second)
    for number in range(20):
        node.order(f"job-{number}", 100)
    node.apply(1.0)

    assert all(node.allocation(f"job-{number}").compute_milli == 100 for number in range(20))
    assert second.asked == 1


def test_n3_a_task_without_a_process_does_not_violate_its_slo():
    node = Node(kinds=("v100",))
    node.order("urgent", 300, latency_sensitive=True, runtime_s=20.0)
    node.apply(1.0)
    node.core.decide(100.0)  # another task releases the device slowly
    assert not node.task("urgent").slo_violated
    node.core.observe(("urgent", 1), Observation(5.0, 0.25, 0.0, 300.0, 1, 1), 105.0)
    node.core.decide(105.0)
    assert not node.task("urgent").slo_violated

    node.core.observe(("urgent", 1), Observation(20.0, 0.3, 0.0, 300.0, 1, 1), 120.0)
    node.core.decide(120.0)
    assert node.task("urgent").slo_violated


def test_tasks_of_one_model_with_different_forecasts_are_not_confused():
    node = Node()
    node.order("unknown", 1000, model="one")
    node.order("known", 300, model="one")
    node.apply(1.0)

    assert node.allocation("unknown").compute_milli == 1000
    assert node.allocation("known").compute_milli == 300


@pytest.mark.parametrize("anew_s", [50.0, 150.0])
def test_a_new_forecast_does_not_change_the_slo(anew_s):
    node = Node(Second(anew_s))
    node.order("known", 900, model="known", runtime_s=100.0)
    node.apply(1.0)
    (cluster,) = node.known_forecasts
    job = node.task("known").submitted.job

    assert node.known_forecasts[cluster].prediction(job, "v100").runtime_s == anew_s
    assert node.known_forecasts[cluster].prediction(job, "v100").slo_s == 120.0


def test_n8_the_second_scheduler_selects_the_device_by_current_free_capacity():
    node = Node()
    node.order("first", 300, latency_sensitive=True)
    node.apply(1.0)
    assert node.allocation("first").device == 0

    node.order("second", 300, device=0, latency_sensitive=True)
    node.apply(2.0)
    assert node.allocation("second").device == 1


def test_n2_a_best_effort_task_gets_the_kind_of_device_with_the_shortest_predicted_run_time():
    node = Node(kinds=("k80", "v100"))
    node.order("there", 100, device=1, others={"k80": 1000.0})
    node.apply(1.0)
    node.order("task", 300, others={"k80": 1000.0})
    node.apply(2.0)
    assert node.allocation("there").device == node.allocation("task").device == 1

    node.order("urgent", 300, others={"k80": 1000.0}, latency_sensitive=True)
    node.apply(3.0)
    assert node.allocation("urgent").device == 0  # N1: the most free device


def test_n7_a_task_is_not_paused_for_its_usage_before_the_first_iteration():
    node = Node()
    node.order("task", 300, latency_sensitive=True)
    node.apply(1.0)
    for now_s in (10.0, 20.0):
        node.runs(now_s, usage_milli=1000, task=0.0)
        assert not node.task("task").paused
    node.runs(29.0, usage_milli=1000, task=0.3)
    node.runs(30.0, usage_milli=1000, task=0.32)
    node.runs(40.0, usage_milli=1000, task=0.5)
    assert node.task("task").paused


def test_n7_a_task_paused_at_its_first_iteration_resumes_after_its_mean_usage_has_fallen():
    node = Node()
    node.order("task", 300, latency_sensitive=True)
    node.apply(1.0)
    node.runs(9.0, usage_milli=1000, task=None)  # no progress is reported yet
    node.runs(10.0, usage_milli=1000, task=0.1)
    assert node.task("task").paused

    for now_s in range(11, 31):
        node.runs(float(now_s), usage_milli=0, task=0.1)

    assert not node.task("task").paused


def test_n3_the_rate_of_a_task_with_infrequent_progress_reports_is_measured():
    node = Node()
    node.order("task", 300, latency_sensitive=True)
    node.apply(1.0)
    node.runs(15.0, task=0.05)
    node.runs(30.0, task=0.1)  # the predicted remaining time would meet the SLO
    assert node.task("task").slo_violated
    assert node.allocation("task").compute_milli > 300


def test_an_unknown_task_to_be_ended_is_reported_as_never_started():
    node = Node()
    order = pb.TaskCommand(
        job=pb.Job(job_id="gone", command=["train"], gpus=1),
        attempt=3,
        end_reason="it was cancelled",
    )
    node.core.apply(pb.NodeCommands(version=1, tasks=[order]), 1.0)

    (told,) = node.core.report()
    assert (told.job_id, told.attempt, told.phase) == ("gone", 3, pb.TASK_ENDED)
    assert told.exit == pb.Exit(requested=True, description="never started")


def test_an_adopted_task_is_marked_as_partly_observed():
    node = Node()
    node.order("job", 300)
    node.order("new", 300)
    allocations = (Allocation(0, 300, GIB),)
    node.core.restore(node.orders["job"], allocations, 1.0, end="", paused=False, ran_s=50.0)
    node.apply(1.0)

    assert node.task("job").is_partly_observed
    assert not node.task("new").is_partly_observed


def test_without_a_sharing_policy_tasks_return_to_the_controllers_allocations():
    node = Node()
    node.order("paused", 500, device=1)
    node.order("lowered", 400)
    node.order("raised", 100)
    had = {"paused": 500, "lowered": 200, "raised": 800}
    for name, milli in had.items():
        # The agent selected their devices: running processes do not move.
        node.core.restore(
            node.orders[name], (Allocation(0, milli, GIB),), 1.0, end="", paused=name == "paused",
            ran_s=5.0,
        )  # fmt: skip
    node.core.apply(pb.NodeCommands(version=2, tasks=node.orders.values()), 1.0)
    assert node.task("paused").paused
    for look in (2.0, 3.0):
        node.core.decide(look)

    assert not node.task("paused").paused
    assert {name: node.allocation(name) for name in had} == {
        "paused": Allocation(0, 500, GIB), "lowered": Allocation(0, 400, GIB), "raised":
        Allocation(0, 100, GIB)
    }  # fmt: skip
    assert not node.task("lowered").has_constant_share


def test_the_memory_of_a_gang_is_divided_among_its_devices():
    node = Node()
    node.order("gang", 1000, gpus=2)
    node.orders["gang"].allocations.extend(write_allocations([Allocation(1, 1000, 8 * GIB)]))
    node.core.apply(pb.NodeCommands(version=1, tasks=node.orders.values()), 1.0)
    node.core.decide(1.0)
    node.core.mark_started(("gang", 1))

    node.core.observe(("gang", 1), Observation(5.0, 0.1, 0.0, 900.0, 30 * GIB, 30 * GIB), 6.0)
    node.core.decide(6.0)
    assert not node.task("gang").end  # 15 GiB of each 16

    node.core.observe(("gang", 1), Observation(6.0, 0.1, 0.0, 900.0, 34 * GIB, 34 * GIB), 7.0)
    node.core.decide(7.0)
    assert node.task("gang").end


def test_n8_elastic_adjustment_grows_a_task_that_violates_its_slo_at_the_next_check():
    node = Node()
    node.order("late", 300, latency_sensitive=True)
    node.apply(1.0)
    node.runs(5.0, late=0.01)
    assert node.allocation("late").compute_milli == 300

    node.runs(CHECK_S + 1, late=0.02)  # of 100 s a tenth has passed
    assert node.task("late").slo_violated
    assert node.allocation("late").compute_milli > 300


def test_n6_no_task_is_evicted_for_a_rate_within_random_variation():
    """Every other second is slow: the mean of a few seconds may underestimate the rate."""

    def ends(stride):
        node = Node(kinds=("v100",))
        node.order("urgent", 500, latency_sensitive=True, runtime_s=100.0)
        node.order("other", 100, runtime_s=500.0)
        node.apply(1.0)
        done = 0.0
        for second in range(2, 12):
            done += stride(second)
            node.runs(float(second), urgent=done, other=0.001 * second)
        return node.allocation("urgent").compute_milli > 500, bool(node.task("other").end)

    assert ends(lambda second: 0.01) == (False, False)
    assert ends(lambda second: 0.005 + 0.005 * (second % 2)) == (True, False)
    assert ends(lambda second: 0.002) == (True, True)
    # The variation of a task with infrequent reports is unknown.
    assert ends(lambda second: 0.01 * (second % 4 == 0)) == (True, False)


@pytest.mark.parametrize("late_s", [30.0, 60.0])
def test_n8_resource_limiting_shares_of_a_device_do_not_exceed_it(late_s):
    node = Node()
    node.order("late", 500, latency_sensitive=True)
    node.order("beside", 900)
    node.order("small", 400, device=1)
    node.apply(1.0)
    for look in range(1, 12):
        running = {name: 0.001 * look for (name, _), task in node.core.tasks.items()
                   if task.step is Step.STARTED and not task.end}  # fmt: skip
        node.runs(late_s + look * CHECK_S, **running)
        for device in (0, 1):
            shares = [
                allocation.compute_milli
                for task in node.core.tasks.values()
                if not task.end
                for allocation in task.allocations
                if allocation.device == device
            ]
            assert sum(shares) <= 1000
    assert node.allocation("late").compute_milli == 1000


def reported(node, name):
    (row,) = [row for row in node.core.report() if row.job_id == name]
    return row


def test_the_progress_of_a_task_without_reports_is_marked_as_estimated():
    node = Node(kinds=("v100",) * 3)
    node.order("silent", 300, runtime_s=100.0)
    node.order("says", 300, runtime_s=100.0)
    node.order("missing", 1000, device=2, runtime_s=float("inf"))
    node.apply(1.0)
    for name, done in (("silent", None), ("says", 0.1), ("missing", None)):
        node.core.observe((name, 1), Observation(40.0, done, 0.0, 300.0, GIB, GIB), 41.0)
    node.core.decide(41.0)

    rows = {name: reported(node, name) for name in ("silent", "says", "missing")}
    assert {name: (row.done, row.done_estimated) for name, row in rows.items()} == {
        "silent": (pytest.approx(0.4), True), "says": (0.1, False), "missing": (0.0, False)
    }  # fmt: skip
    assert all(row.saved == 0 for row in rows.values())  # saved progress is never estimated


def test_the_reported_remaining_time_is_that_of_the_slo_check():
    node = Node()
    node.order("slow", 300, latency_sensitive=True, runtime_s=100.0)
    node.order("even", 300, device=1, runtime_s=100.0)
    node.order("tardy", 300, device=1, runtime_s=100.0)
    node.apply(1.0)
    for now_s in (10.0, 30.0, 50.0):
        node.runs(now_s, slow=now_s / 200, even=now_s / 100, tardy=now_s / 200)

    slow, even, tardy = (reported(node, name) for name in ("slow", "even", "tardy"))
    assert slow.slo_violated
    assert 50.0 + slow.remaining_s > 120.0  # the SLO: both values show a violation
    assert even.remaining_s == pytest.approx(50.0)
    assert tardy.remaining_s == pytest.approx(
        0.75 * 200.0
    )  # by its measured rate, not the predicted one

    node.core.apply(pb.NodeCommands(version=2, tasks=node.orders.values()), 51.0)
    node.core.decide(51.0)
    assert not reported(node, "slow").HasField("remaining_s")  # other policies check no SLOs
    assert not reported(node, "slow").slo_violated


# Shares of elastic workers -----------------------------------------------------------------------


def worker(node, name, milli, memory_bytes):
    """Add a worker of an elastic job, or change its share."""
    node.order(name, milli)
    command = node.orders[name]
    command.worker.job_id = name
    command.ClearField("allocations")
    command.allocations.extend(write_allocations([Allocation(0, milli, memory_bytes)]))


def apply_exclusively(node, now_s):
    """Let the agent follow the controller, as under a policy without rebalancing."""
    node.core.apply(pb.NodeCommands(version=1, tasks=node.orders.values()), now_s)
    node.core.decide(now_s)
    for one in tuple(node.core.ready()):
        node.core.mark_started(one.name)


def test_s4_a_worker_starts_on_the_share_of_a_device_that_another_worker_releases():
    node = Node()
    worker(node, "one", 1000, 16 * GIB)
    apply_exclusively(node, 1.0)
    worker(node, "one", 500, 8 * GIB)
    worker(node, "two", 500, 8 * GIB)
    apply_exclusively(node, 2.0)

    assert node.allocation("one") == node.allocation("two") == Allocation(0, 500, 8 * GIB)
    assert node.task("one").why == "its share was reduced to 50 % of the device"


def test_s4_a_share_is_raised_once_the_other_worker_has_ended():
    node = Node()
    for name in ("one", "two"):
        worker(node, name, 500, 8 * GIB)
    apply_exclusively(node, 1.0)
    worker(node, "one", 1000, 16 * GIB)
    node.orders["two"].end_reason = "its job continues without it"
    apply_exclusively(node, 2.0)
    assert node.allocation("one").compute_milli == 500  # its process may still use memory

    left = Observation(2.0, 1.0, 1.0, 0.0, 0, 0, pb.Exit(requested=True))
    node.core.observe(("two", 1), left, 3.0)
    node.core.decide(3.0)
    assert node.allocation("one") == Allocation(0, 1000, 16 * GIB)
