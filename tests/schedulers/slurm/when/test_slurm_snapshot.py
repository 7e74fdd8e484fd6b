"""Predicted starts of a Slurm cluster, from its state in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from presage.errors import ConfigError
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.when.slurm_queue import QueuedJob, SlurmNode, SlurmState
from presage.schedulers.slurm.when.slurm_snapshot import copy_slurm
from presage.schedulers.what_if.answer import Verdict
from presage.schedulers.what_if.variant import AS_REQUESTED, Variant
from presage.schedulers.what_if.what_if import what_if

NOW_S = 1_000_000.0
HOUR_S = 3600.0
EXACT = JobNote(own_minutes=600, predicted_s=1000, median_s=1000, features="d" * 64)


def queued(name: str, **changes: Any) -> QueuedJob:
    values: dict[str, Any] = {
        "name": name, "state": "PENDING", "reason": "Priority", "priority": 100 - int(name),
        "partitions": ("main",), "nodes": 1, "gpu_type": "", "gpus": 1, "shards": 0,
        "limit_s": HOUR_S, "used_s": 0, "submitted_unix_s": 999_000, "eligible_unix_s": 999_000,
        "started_unix_s": 0, "ended_unix_s": 0, "on_nodes": (), "note": EXACT,
    }  # fmt: skip
    return QueuedJob(**(values | changes))


def running(name: str, used_s: int = 0, **changes: Any) -> QueuedJob:
    begun = {"state": "RUNNING", "used_s": used_s, "started_unix_s": int(NOW_S) - used_s}
    return queued(name, **({"on_nodes": ("n1",)} | begun | changes))


def node(name: str = "n1", gpus: int = 1, gpu_type: str = "a100", **changes: Any) -> SlurmNode:
    values: dict[str, Any] = {
        "name": name, "partitions": frozenset({"main"}), "gpus": {gpu_type: gpus}, "shards": 0,
        "is_available": True,
    }  # fmt: skip
    return SlurmNode(**(values | changes))


NODES = (node(),)


def copied(jobs, nodes=NODES, **changes: Any):
    state = SlurmState(now_unix_s=NOW_S, jobs=tuple(jobs), nodes=tuple(nodes), **changes)
    return copy_slurm(state)


def asked(found, *names: str, variants=(AS_REQUESTED,), samples: int = 20):
    return what_if(
        found.snapshot,
        list(names),
        policy=found.policy,
        forecaster=found.forecaster,
        planned_by=found.planned_by,
        variants=variants,
        samples=samples,
    )


def starts_s(found, *names: str) -> list[float]:
    return [answer.start.quantile_s(0.5) for answer in asked(found, *names)]


# Worked examples ------------------------------------------------------------------------------


def test_jobs_start_when_those_before_them_are_forecast_to_end():
    jobs = [running("1", used_s=400), queued("3"), queued("2")]
    assert starts_s(copied(jobs), "2", "3") == [600.0, 1600.0]


def test_slurm_plans_by_time_limits_and_jobs_end_by_their_forecasts():
    # Job 4 fits before the planned start of job 3 by its limit, and job 5 does not.
    jobs = [
        running("1", limit_s=HOUR_S, gpus=1),
        queued("3", gpus=2),
        queued("4", limit_s=HOUR_S / 2),
        queued("5", limit_s=2 * HOUR_S),
    ]
    found = copied(jobs, [node(gpus=2)])
    assert found.policy == "backfill:reserve=all"
    assert starts_s(found, "3", "4", "5") == [1000.0, 0.0, 2000.0]


def test_slurm_plans_that_running_jobs_end_at_their_limits():
    # Job 1 has half of its forecast behind it, and is planned to run for another 3100 s.
    jobs = [
        running("1", used_s=500),
        queued("3", gpus=2),
        queued("4", limit_s=3000.0),
        queued("5", limit_s=3200.0),
    ]
    found = copied(jobs, [node(gpus=2)])
    assert starts_s(found, "4") == [0.0]
    assert starts_s(copied([jobs[0], jobs[1], jobs[3]], [node(gpus=2)]), "5") == [1500.0]


def test_without_backfilling_jobs_start_in_order():
    jobs = [running("1"), queued("3", gpus=2), queued("4", limit_s=60.0)]
    found = copied(jobs, [node(gpus=2)], has_backfill=False)
    assert found.policy == "fifo"
    assert starts_s(found, "3", "4") == [1000.0, 2000.0]


def test_jobs_without_a_forecast_use_a_random_part_of_their_limits():
    jobs = [running("1", used_s=600, note=None), queued("2", note=None)]
    (answer,) = asked(copied(jobs), "2", samples=300)
    samples_s = answer.start.samples_s
    assert samples_s[0] >= 0 and samples_s[-1] <= HOUR_S - 600
    assert answer.start.quantile_s(0.5) == pytest.approx(1500, rel=0.15)
    assert answer.basis.run_times == {"a random part of its time limit": 2}


def test_no_job_runs_longer_than_its_users_own_limit():
    slow = replace(EXACT, median_s=10_000, predicted_s=10_000, own_minutes=60)
    jobs = [running("1", note=slow), queued("2")]
    assert starts_s(copied(jobs), "2") == [HOUR_S]


def test_a_limit_that_the_watcher_extends_is_not_the_end():
    note = replace(EXACT, set_minutes=10, own_minutes=600)
    jobs = [running("1", note=note, limit_s=600.0), queued("2")]
    assert starts_s(copied(jobs), "2") == [1000.0]


def test_partitions_and_types_decide_on_which_nodes_a_job_starts():
    nodes = [
        node("n1", partitions=frozenset({"main", "small"})),
        node("n2"),
        node("n3", gpu_type="v100"),
    ]
    jobs = [
        running("1"), running("2", used_s=900, on_nodes=("n2",)), running("3", on_nodes=("n3",)),
        queued("4", partitions=("small",)), queued("5", gpu_type="v100"), queued("6"),
    ]  # fmt: skip
    found = copied(jobs, nodes)
    assert starts_s(found, "4", "5", "6") == [1000.0, 1000.0, 100.0]
    assert found.kinds == {"a100": ("a100@main+small", "a100@main"), "v100": ("v100",)}


def test_fewer_gpus_are_asked_about_as_a_variant():
    found = copied([running("1"), queued("2", gpus=2)], [node(gpus=2)])
    both, one = asked(found, "2", variants=[AS_REQUESTED, Variant(gpus=1)])
    assert (both.start.quantile_s(0.5), one.start.quantile_s(0.5)) == (1000.0, 0.0)
    assert one.end.quantile_s(0.5) == 2000.0  # half of the GPUs take twice as long


def test_another_type_is_planned_by_the_limit_too():
    # As requested, job 4 waits for the V100. On an A100 it ends by its limit before job 3 begins.
    nodes = [node("n1", 2), node("n2", gpu_type="v100")]
    jobs = [
        running("1"), running("2", on_nodes=("n2",)), queued("3", gpus=2, gpu_type="a100"),
        queued("4", gpu_type="v100", limit_s=HOUR_S / 2),
    ]  # fmt: skip
    found = copied(jobs, nodes)
    variants = [AS_REQUESTED, Variant(kinds=found.kinds["a100"])]
    as_requested, on_a100 = asked(found, "4", variants=variants)
    assert as_requested.start.quantile_s(0.5) == 1000.0
    assert on_a100.start.quantile_s(0.5) == 0.0


def test_a_begin_time_is_waited_for():
    jobs = [queued("1", eligible_unix_s=int(NOW_S) + 500, reason="BeginTime")]
    assert starts_s(copied(jobs), "1") == [500.0]


def test_running_shards_hold_their_gpu():
    nodes = [node(gpus=1, shards=10)]
    jobs = [running("1", gpus=0, shards=3), running("2", gpus=0, shards=4), queued("3")]
    assert starts_s(copied(jobs, nodes), "3") == [1000.0]


def test_shards_and_whole_gpus_are_on_different_devices():
    nodes = [node(gpus=2, shards=20)]
    jobs = [
        running("1", used_s=500, gpus=0, shards=3), running("2", used_s=400), queued("3"),
        running("4", used_s=300, gpus=0, shards=7),
    ]  # fmt: skip
    found = copied(jobs, nodes)
    devices = {one: status.allocations[0].device for one, status in found.snapshot.active.items()}
    assert devices["1"] == devices["4"] != devices["2"]
    assert starts_s(found, "3") == [600.0]


def test_a_running_job_whose_request_is_not_read_holds_the_other_gpus_of_its_nodes():
    jobs = [running("1", used_s=500, gpus=None), running("2"), queued("3")]
    (answer,) = asked(copied(jobs, [node(gpus=3)]), "3")
    assert answer.start.quantile_s(0.5) == 500.0
    assert any("1 running job whose request" in one for one in answer.basis.assumptions)


@pytest.mark.parametrize("state", ["COMPLETING", "STAGE_OUT"])
def test_jobs_that_have_ended_hold_no_gpus(state):
    jobs = [running("1", state=state), queued("2")]
    assert starts_s(copied(jobs), "2") == [0.0]


def test_suspended_jobs_and_nodes_without_power_are_named():
    jobs = [running("1", state="SUSPENDED"), queued("2")]
    (answer,) = asked(copied(jobs, [node(), node("n2", is_powered_down=True)]), "2")
    assert answer.start.quantile_s(0.5) == 0.0
    assert {"1 suspended job resumed now", "1 node powered up without delay"} <= set(
        answer.basis.assumptions
    )


def test_later_arrivals_have_the_limits_of_the_jobs_that_they_repeat():
    ended = queued("3", state="COMPLETED", started_unix_s=990_000, ended_unix_s=993_000)
    found = copied([running("1"), queued("2"), ended])
    jobs = [found.snapshot.jobs["2"], found.snapshot.past.jobs[0].job]
    plans = found.planned_by.predictions([(one, "a100") for one in jobs])
    assert [one.runtime_s for one in plans] == [HOUR_S, HOUR_S]


def test_gpus_of_the_whole_job_may_be_on_more_nodes_than_the_least():
    nodes = [node("n1", 2), node("n2", 2)]
    assert starts_s(copied([queued("1", gpus=3, is_per_node=False)], nodes), "1") == [0.0]


def test_ended_jobs_correct_forecasts_of_the_same_features():
    ended = [
        queued(
            f"{i}", state="COMPLETED", started_unix_s=990_000, ended_unix_s=993_000,
            note=replace(EXACT, predicted_s=1300),
        )
        for i in range(3, 9)
    ]  # fmt: skip
    note = replace(EXACT, predicted_s=1300)
    jobs = [running("1", note=note, limit_s=10 * HOUR_S), queued("2", note=note), *ended]
    (start_s,) = starts_s(copied(jobs, ended_for_s=300.0), "2")
    assert start_s > 2000  # three times as long as forecast, like those before


# Starts that are not predicted ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reason": "Dependency"}, "reason is Dependency"),
        ({"reason": "JobHeldUser"}, "reason is JobHeldUser"),
        ({"gpus": 0}, "requests no GPUs"),
        ({"gpus": 0, "shards": 2}, "requests shards"),
        ({"gpus": None}, "request of GPUs is not read"),
        ({"is_heterogeneous": True}, "part of a heterogeneous job"),
    ],
)
def test_jobs_that_wait_for_more_than_gpus_have_no_start(changes, why):
    found = copied([queued("1", **changes), queued("2")])
    closed, other = asked(found, "1", "2")
    assert closed.verdict is Verdict.UNKNOWN
    assert why in closed.why
    assert other.start.quantile_s(0.5) == 0.0  # it is not in the way of others
    assert any("no start of 1 job that waits for more" in one for one in closed.basis.assumptions)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu_type": "h100"}, "no available node of partition main has GPUs of type h100"),
        ({"partitions": ("other",)}, "no available node of partition other has GPUs"),
        ({"gpus": 9, "nodes": 3}, "it needs 9 GPUs; partition main has 4 available"),
        ({"gpus": 3}, "on 1 node; the largest node of partition main has 2"),
    ],
)
def test_jobs_that_fit_on_no_available_nodes_are_impossible(changes, why):
    (answer,) = asked(copied([queued("1", **changes)], [node("n1", 2), node("n2", 2)]), "1")
    assert answer.verdict is Verdict.IMPOSSIBLE
    assert why in answer.why


def test_another_request_of_an_impossible_job_is_not_called_impossible():
    found = copied([queued("1", gpus=3)], [node("n1", 2)])
    as_requested, fewer = asked(found, "1", variants=[AS_REQUESTED, Variant(gpus=2)])
    assert as_requested.verdict is Verdict.IMPOSSIBLE
    assert fewer.verdict is Verdict.UNKNOWN
    assert "can never run as requested: it needs 3 GPUs" in fewer.why


def test_jobs_on_drained_nodes_run_elsewhere():
    nodes = [node("n1", is_available=False), node("n2")]
    elsewhere, waiting = asked(copied([running("1"), queued("2")], nodes), "1", "2")
    assert elsewhere.verdict is Verdict.STARTED
    assert waiting.start.quantile_s(0.5) == 0.0
    assert any(
        "1 node on which no jobs start now stays so" in one for one in waiting.basis.assumptions
    )


def test_a_cluster_without_gpus_has_no_starts():
    with pytest.raises(ConfigError, match="no available node has GPUs"):
        copied([queued("1")], [node(gpus=0), node("n2", is_available=False)])


@pytest.mark.parametrize(
    "changes",
    [
        {"median_s": float("nan")}, {"median_s": -1.0}, {"predicted_s": 1.0}, {"quantile": 0.5},
        {"quantile": 1.0}, {"median_s": None}, {"predicted_s": float("inf")},
        {"quantile": 0.50001, "predicted_s": 1e200},
    ],
)  # fmt: skip
def test_a_note_without_a_sound_forecast_counts_as_none(changes):
    found = copied([running("1", note=replace(EXACT, **changes)), queued("2")])
    (answer,) = asked(found, "2")
    assert answer.basis.run_times["a random part of its time limit"] == 1


def test_an_array_stands_for_its_tasks():
    found = copied(
        [queued("1"), replace(queued("2"), name="4_1"), replace(queued("3"), name="4_2")]
    )
    assert found.jobs_named("4") == ["4_1", "4_2"]
    assert found.jobs_named("4_2") == ["4_2"]
    assert found.jobs_named("5") == []
