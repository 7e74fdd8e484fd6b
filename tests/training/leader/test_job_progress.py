"""Progress and pace of a job, from heartbeats."""

from __future__ import annotations

import pytest

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.leader.job_progress import JobProgress, Pace
from presage.training.report import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("presage.training.leader.job_progress.time.monotonic", lambda: now[0])
    return now


def beat(progress, worker, done, *, generation=1, age_s=0.0, saved=0.0, current=1):
    report = Progress(generation, Cursor(1), age_s, done, saved)
    progress.enter(worker, report, current)


def test_the_pace_is_measured_between_commits_of_the_current_generation(clock):
    progress = JobProgress()
    beat(progress, "a", 0.1)
    clock[0] += 1.5
    beat(progress, "a", 0.13)
    assert progress.pace(2, 1) is None  # for less than 2 s
    clock[0] += 2.0
    beat(progress, "b", 0.16, age_s=0.5)  # committed 3 s after the first one

    pace = progress.pace(2, 1)
    assert pace is not None
    assert pace.workers == 2
    assert pace.seconds == pytest.approx(3.0)
    assert pace.per_s == pytest.approx(0.02)
    assert progress.pace(3, 2) is None  # of another generation


def test_a_worker_without_a_commit_does_not_change_the_pace(clock):
    progress = JobProgress()
    beat(progress, "a", 0.1)
    clock[0] += 4.0
    beat(progress, "a", 0.3)
    clock[0] += 4.0
    beat(progress, "a", 0.3, age_s=4.0)
    beat(progress, "b", 0.2, generation=0)

    assert progress.pace(1, 1) == Pace(1, (0.3 - 0.1) / 4, 4.0)


def test_what_is_saved_does_not_go_back_when_the_worker_that_saved_it_leaves():
    progress = JobProgress()
    beat(progress, "a", 0.5, saved=0.4)
    beat(progress, "b", 0.5)

    assert progress.saved == 0.4
    assert progress.of("b").done == 0.5
    assert progress.of("c") == Progress()


@pytest.mark.parametrize("changes", [{"done": 1.5}, {"age_s": -1}, {"saved": "x"}, {"cursor": 3}])
def test_a_progress_that_is_not_valid_is_rejected(changes):
    message = Progress().to_message()
    assert Progress.from_message(message) == Progress()

    with pytest.raises(ElasticError, match="progress of a worker is not valid"):
        Progress.from_message(message | changes)
