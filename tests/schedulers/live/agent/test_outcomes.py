"""Outcomes of ended tasks contain only observed values."""

from __future__ import annotations

import os

import pytest

from presage.errors import ServiceError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.job import Job
from presage.schedulers.live.agent.node_task import NodeTask, Observation, Step
from presage.schedulers.live.agent.outcome_outbox import MAX_BYTES, MAX_STORED, Outbox, make_outcome
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.outcomes.outcome import Reported
from presage.serving.v1.prediction_pb2 import Outcome, Share
from tests.serving.conftest import make_job

GIB = 2**30
RAN_S, ENDED_S = 100.0, 1.6e9
DEVICE = Slot("cpu-2", 4 * GIB, cpus=(0, 1))


def task(name, milli=1000, **how):
    """Return an ended task that ran for 100 s and was busy for half of that time."""
    features = make_job("a digest")
    job = Job(name, 0.0, iterations=1000, features=features)
    submitted = SubmittedJob(job, ("train",), features_id=f"the user's {name}")
    over = pb.Exit(**(how or {"finished": True}))
    seen = Observation(RAN_S, 1.0, 0.0, None, 0, 2 * GIB, over)
    return NodeTask(
        pb.TaskCommand(attempt=1), submitted, 0.0, step=Step.ENDED, observation=seen,
        busy_s=RAN_S / 2,
        allocations=(Allocation(0, milli, GIB),), first_sample=(10.0, 0.1), last_sample=(90.0, 0.9),
    )  # fmt: skip


def together(one, other, for_s=RAN_S):
    one.colocated_s[other.name], other.colocated_s[one.name] = for_s, for_s
    return {one.name: one, other.name: other}


def told(of, tasks=None, held="cgroup v1 weight"):
    row = make_outcome(of, DEVICE, tasks or {of.name: of}, "agent", held, ENDED_S)
    assert row is not None
    return row


def test_outcomes_use_the_job_ids_given_with_the_features():
    one, other = task("one"), task("other")
    row = told(one, together(one, other))

    assert row.finished_at_unix_s == ENDED_S
    assert row.job.job_id == "the user's one"
    assert [of.job.job_id for of in row.colocated_jobs] == ["the user's other"]


def test_the_outcome_of_a_partly_observed_task_has_only_certain_values():
    one, other = task("one"), task("other")
    tasks = together(one, other)
    whole = told(one, tasks)
    assert (whole.runtime_s, whole.compute_utilization) == (RAN_S, 0.5)
    assert whole.step_time_median_s == pytest.approx(0.1)
    one.is_partly_observed = True

    row = told(one, tasks)
    for name in ("runtime_s", "step_time_median_s", "compute_utilization"):
        assert not row.HasField(name)
    assert not row.colocated_jobs
    assert row.memory_peak_bytes == 2 * GIB
    assert row.share.mode == "time-slice"  # it may have been co-located
    assert told(other, tasks).colocated_jobs[0].job.job_id == "the user's one"


@pytest.mark.parametrize(
    ("held", "milli", "alone", "beside"),
    [
        ("cgroup v1 weight", 300, (1.0, "exclusive"), (1.0, "time-slice")),
        ("cgroup v2 weight", 1000, (1.0, "exclusive"), (1.0, "time-slice")),
        ("cgroup v2", 300, (0.3, "cpu-quota"), (0.3, "cpu-quota")),
        ("cgroup v1", 1000, (1.0, "exclusive"), (1.0, "cpu-quota")),
        ("duty cycle", 300, (0.3, "time-slice"), (0.3, "time-slice")),
        ("mps", 300, (0.3, "mps"), (0.3, "mps")),
        ("", 1000, (1.0, "exclusive"), (1.0, "time-slice")),
    ],
)
def test_an_outcome_has_the_share_and_how_it_was_enforced(held, milli, alone, beside):
    assert told(task("one", milli), held=held).share == Share(fraction=alone[0], mode=alone[1])
    one, other = task("one", milli), task("other", milli)
    row = told(one, together(one, other), held)
    expected = Share(fraction=beside[0], mode=beside[1])
    assert (row.share, row.colocated_jobs[0].share) == (expected, expected)


def test_an_outcome_names_the_release_that_predicted_the_job_on_its_kind_of_device():
    one = task("one")
    assert told(one).release_id == ""  # placed without a forecast of a release

    one.order.predictions.add(kind="h100", release_id="another release")
    assert told(one).release_id == ""
    one.order.predictions.add(kind=DEVICE.kind, release_id="the release")
    assert told(one).release_id == "the release"


@pytest.mark.parametrize("changed", ["share", "occupancy"])
def test_times_are_left_out_where_one_share_and_one_occupancy_do_not_describe_the_run(changed):
    one, other = task("one"), task("other")
    one.order.predictions.add(kind=DEVICE.kind, release_id="the release")
    if changed == "share":
        one.has_constant_share = False
    else:  # the other task was pruned, so that the outcome cannot name it
        together(one, other)

    row = told(one)
    for name in ("runtime_s", "step_time_median_s", "compute_utilization"):
        assert not row.HasField(name)
    assert (row.release_id, row.memory_peak_bytes) == ("the release", 2 * GIB)


@pytest.mark.parametrize(
    ("beside_s", "named", "timed"),
    [(0.0, False, True), (9.0, False, True), (30.0, False, False), (60.0, True, True)],
)
def test_a_co_located_job_is_named_unless_the_overlap_was_too_short(beside_s, named, timed):
    one, other = task("one"), task("other")
    row = told(one, together(one, other, beside_s))
    assert (bool(row.colocated_jobs), row.HasField("step_time_median_s")) == (named, timed)


def test_a_run_co_located_with_a_job_without_features_has_no_times():
    one, other = task("one"), task("other")
    job = Job("other", 0.0, iterations=1000)
    other = NodeTask(other.order, SubmittedJob(job, ("train",)), 0.0, allocations=other.allocations)

    row = told(one, together(one, other))
    assert not row.colocated_jobs
    assert not row.HasField("step_time_median_s")


@pytest.mark.parametrize(
    ("how", "failure"),
    [({"out_of_memory": True}, "out-of-memory"), ({"description": "ended with status 1"}, "crash")],
)
def test_the_outcome_of_a_failed_task_has_no_times(how, failure):
    row = told(task("one", **how))
    assert row.failure == failure
    assert not row.HasField("runtime_s")


@pytest.mark.parametrize("how", [{"requested": True}, {"lost": True}])
def test_a_task_that_was_ended_or_lost_has_no_outcome(how):
    one = task("one", **how)
    assert make_outcome(one, DEVICE, {one.name: one}, "agent", "mps", ENDED_S) is None


class Deaf:
    """Prediction service that is unavailable."""

    def report_rows(self, rows):
        raise ServiceError("no response")


def test_the_newest_undelivered_outcomes_are_kept(tmp_path):
    outbox, kept = Outbox(tmp_path, Deaf()), tmp_path / "outcomes"
    kept.mkdir()
    for number in range(MAX_STORED):
        (kept / f"earlier.{number}").touch()  # an outcome with unknown content
        os.utime(kept / f"earlier.{number}", ns=(number, number))
    for number in range(3):
        outbox.put(told(task("one")), f"new.{number}")

    with pytest.raises(ServiceError):
        outbox.send()
    names = {path.name for path in kept.iterdir()}
    assert len(names) == MAX_STORED
    assert {"new.0", "new.1", "new.2", "earlier.3"} <= names
    assert "earlier.2" not in names


class Hears:
    """Prediction service that accepts every outcome."""

    def __init__(self):
        self.reported = []

    def report_rows(self, rows):
        self.reported.append(rows)
        return Reported(len(rows), 0, {})


def test_outcomes_sent_together_fit_in_a_message(tmp_path):
    service = Hears()
    outbox = Outbox(tmp_path, service)
    for number in range(5):
        row = Outcome(idempotency_key=f"{number}", failure="x" * (MAX_BYTES // 2 - 100))
        outbox.put(row, f"job.{number}")
    outbox.put(Outcome(failure="x" * MAX_BYTES), "too-large.1")

    assert [outbox.send() for _ in range(4)] == [2, 2, 1, 0]
    assert [[row.idempotency_key for row in rows] for rows in service.reported] == [
        ["0", "1"], ["2", "3"], ["4"]
    ]  # fmt: skip
