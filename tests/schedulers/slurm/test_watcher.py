from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any

import pytest

from presage.errors import ServiceError
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.watch.ended_jobs import FOLDER
from presage.schedulers.slurm.watch.job_outcomes import FAILURES, make_outcome, outcome_key
from presage.schedulers.slurm.watch.slurm_job import ENDED
from presage.schedulers.slurm.watch.watcher import Watcher, heartbeat_age_s, restore
from presage.serving.codec.wire_values import write_job
from presage.serving.v1 import prediction_pb2 as pb
from tests.features import examples
from tests.schedulers.slurm.jobs import NOTE, FakeSlurm, slurm_job, squeue_line

FEATURES = write_job(examples.features()).SerializeToString(deterministic=True)
WITH_FEATURES = replace(NOTE, features=hashlib.sha256(FEATURES).hexdigest())
ENDED_AT: dict[str, Any] = {
    "ended_unix_s": 1_000_400,
    "used_s": 300,
    "note": WITH_FEATURES,
    "limit_minutes": 30,
}


class FakeOutbox:
    """Outbox in memory whose service may be away."""

    def __init__(self) -> None:
        self.stored: dict[str, pb.Outcome] = {}
        self.sent: list[pb.Outcome] = []
        self.is_away = False

    def put(self, outcome, name):
        self.stored[name] = outcome

    def send(self):
        if self.is_away:
            raise ServiceError("no prediction service")
        count = len(self.stored)
        self.sent += self.stored.values()
        self.stored = {}
        return count


def make_watcher(slurm, folder, outbox=None):
    FeatureStore(folder).put(FEATURES)
    return Watcher(slurm, folder, outbox, cluster="test", lead_minutes=10)


def test_a_pass_extends_limits_and_leaves_a_heartbeat(tmp_path):
    slurm = FakeSlurm(slurm_job(1, used_s=25 * 60), slurm_job(2))

    assert heartbeat_age_s(tmp_path) == float("inf")
    make_watcher(slurm, tmp_path).pass_once()

    assert slurm.by_id[1].limit_minutes == 45
    assert slurm.by_id[1].note.set_minutes == 45
    assert slurm.by_id[2].limit_minutes == 30
    assert heartbeat_age_s(tmp_path) < 60


def test_a_job_that_ends_meanwhile_stops_no_other_extension(tmp_path):
    slurm = FakeSlurm(slurm_job(1, used_s=25 * 60), slurm_job(2, used_s=25 * 60))
    slurm.refuses = {1}

    make_watcher(slurm, tmp_path).pass_once()

    assert slurm.by_id[2].limit_minutes == 45


def test_restoring_gives_the_users_own_limit(tmp_path):
    slurm = FakeSlurm(slurm_job(1), slurm_job(2, state="PENDING"), slurm_job(3, state="COMPLETED"))

    assert restore(slurm) == 2
    assert slurm.by_id[1].limit_minutes == slurm.by_id[2].limit_minutes == 600
    assert restore(slurm) == 0
    make_watcher(slurm, tmp_path).pass_once()
    assert slurm.by_id[1].limit_minutes == 600


def test_an_ended_job_yields_one_outcome_over_many_passes_and_watchers(tmp_path):
    slurm, outbox = FakeSlurm(slurm_job(state="COMPLETED", **ENDED_AT)), FakeOutbox()
    for _ in range(3):
        watcher = make_watcher(slurm, tmp_path, outbox)
        watcher.pass_once()
        watcher.pass_once()

    assert len({row.idempotency_key for row in outbox.sent}) == 1
    assert len({row.SerializeToString() for row in outbox.sent}) == 1  # a known key, not a conflict
    row = outbox.sent[0]
    assert row.idempotency_key == "slurm/test/1000000/7/0"
    assert (row.runtime_s, row.failure, row.release_id, row.device.kind) == (
        300, "", "release", "example",
    )  # fmt: skip


def test_outcomes_wait_for_the_service(tmp_path):
    slurm, outbox = FakeSlurm(slurm_job(state="COMPLETED", **ENDED_AT)), FakeOutbox()
    watcher = make_watcher(slurm, tmp_path, outbox)
    outbox.is_away = True
    watcher.pass_once()
    slurm.by_id.clear()
    outbox.is_away = False
    watcher.pass_once()

    assert len(outbox.sent) == 1


@pytest.mark.parametrize("state", ENDED)
def test_an_outcome_says_how_the_job_ended(state):
    outcome = make_outcome(slurm_job(state=state, **ENDED_AT), FEATURES, "test")

    if state not in FAILURES:
        assert outcome is None
        return
    assert outcome is not None
    assert outcome.failure == FAILURES[state]
    assert outcome.HasField("runtime_s") == (state == "COMPLETED")


def test_a_job_that_was_suspended_or_never_ran_has_no_outcome():
    suspended = slurm_job(state="COMPLETED", **{**ENDED_AT, "used_s": 200})
    assert make_outcome(suspended, FEATURES, "test") is None
    never = slurm_job(state="FAILED", started_unix_s=0, **ENDED_AT)
    assert make_outcome(never, FEATURES, "test") is None


def test_a_restarted_job_is_another_run():
    first = slurm_job(state="COMPLETED", **ENDED_AT)
    keys = {
        outcome_key(job, "test")
        for job in (first, replace(first, restarts=1), replace(first, submitted_unix_s=5))
    }
    assert len(keys) == 3


def record(folder, *lines):
    (folder / FOLDER).mkdir(exist_ok=True)
    path = folder / FOLDER / f"7.0.{time.monotonic_ns()}"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("reason", "exit_code", "failure"),
    [
        ("None", "0:0", ""),
        ("NonZeroExitCode", "3:0", "crash"),
        ("TimeLimit", "0:15", "timeout"),
        ("OutOfMemory", "0:125", "out-of-memory"),
    ],
)
def test_a_job_that_slurm_has_forgotten_is_known_from_the_epilog(
    reason, exit_code, failure, tmp_path
):
    outbox = FakeOutbox()
    line = squeue_line(
        WITH_FEATURES.text(), State="COMPLETING", Reason=reason, exit_code=exit_code,
        TimeUsed="5:00", EndTime="1000400",
    )  # fmt: skip
    path = record(tmp_path, line)
    make_watcher(FakeSlurm(), tmp_path, outbox).pass_once()

    assert [row.failure for row in outbox.sent] == [failure]
    assert not path.exists()


def test_a_record_of_a_job_that_slurm_knows_waits_for_its_final_state(tmp_path):
    outbox = FakeOutbox()
    changes = {"TimeUsed": "5:00", "EndTime": "1000400", "State": "COMPLETING"}
    path = record(tmp_path, squeue_line(WITH_FEATURES.text(), **changes))
    slurm = FakeSlurm(slurm_job(state="COMPLETING", **ENDED_AT))
    watcher = make_watcher(slurm, tmp_path, outbox)

    watcher.pass_once()
    assert outbox.sent == []
    assert path.exists()
    slurm.change(7, state="FAILED")
    watcher.pass_once()
    watcher.pass_once()

    assert [row.failure for row in outbox.sent] == ["crash"]
    assert not path.exists()


@pytest.mark.parametrize(
    "lines", [[], ["garbage"], [squeue_line("presage: limit=1e99")], ["\0" * 1000]]
)
def test_a_record_that_cannot_be_read_is_dropped(lines, tmp_path):
    outbox = FakeOutbox()
    path = record(tmp_path, *lines)
    make_watcher(FakeSlurm(), tmp_path, outbox).pass_once()

    assert outbox.sent == []
    assert not path.exists()


def test_a_cancelled_job_is_known_from_the_epilog_to_say_nothing(tmp_path):
    outbox = FakeOutbox()
    record(tmp_path, squeue_line(WITH_FEATURES.text(), State="COMPLETING", exit_code="0:15"))
    make_watcher(FakeSlurm(), tmp_path, outbox).pass_once()

    assert outbox.sent == []


def test_features_that_were_lost_yield_no_outcome(tmp_path):
    slurm, outbox = (
        FakeSlurm(slurm_job(state="COMPLETED", **{**ENDED_AT, "note": NOTE})),
        FakeOutbox(),
    )
    make_watcher(slurm, tmp_path, outbox).pass_once()

    assert outbox.sent == []
