"""Progress of a job: in its status, and reported to Presage's agents by its workers."""

from __future__ import annotations

import json
import signal
import time

import pytest

from presage import progress
from presage.schedulers.live.job_progress import read_progress
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once
from tests.training.support.worker_process import train


def test_the_status_has_the_fraction_done_and_saved_and_the_pace(tmp_path):
    options = {"gates": {"40": "g1"}, "epochs": 10, "step_s": 0.1}
    on_disk = {"checkpoint": str(tmp_path / "ckpt"), "checkpoint_interval_s": 0.5}
    with running(tmp_path, workers=2) as job:
        job.start("a", "b", **options, **on_disk)
        status = job.wait_for(lambda s: s["pace"] is not None)
        assert status["pace"]["workers"] == 2
        assert status["pace"]["seconds"] >= 2
        assert 0 < status["pace"]["per_s"] < 0.2  # 80 steps in at least 8 s
        assert {w["name"] for w in status["workers"]} == {"a", "b"}
        job.wait_at("g1")
        status = job.wait_for(lambda s: s["done"] == 0.5)
        assert 0 < status["saved"] <= 0.5


def test_workers_report_progress_in_samples_and_leave_on_sigusr1(tmp_path):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    options = {"gates": {"4": "g1", "9": "g2"}}
    with running(tmp_path, workers=2, min_workers=2) as job:
        for name in "ab":
            file = tmp_path / f"{name}.progress"
            environment = {"PRESAGE_PROGRESS": str(file), "PRESAGE_CHECKPOINT": str(folder)}
            job.start(name, environment=environment, **options)
            job.wait_connected("ab".index(name) + 1)
        job.wait_at("g1")
        report = read_progress(tmp_path / "b.progress")
        assert report is not None
        assert (report.iterations, report.saved) == (3 * 96, 0)
        job.kill("a", signal.SIGUSR1)  # the handler of presage.progress does not replace ours
        job.wait_for(lambda s: "leaving" in [w["state"] for w in s["workers"]])
        job.open("g1")
        result = job.join("a")["a"]
        assert result["has_left"]
        assert (folder / "elastic.ckpt").exists()
        report = read_progress(tmp_path / "a.progress")
        assert report is not None
        assert report.saved == 12 * result["step"]
        assert json.loads((folder / progress.SAVED).read_text()) == {"done": report.saved}
        job.open("g2")
        job.start("c", **options)
        job.finish()

        report = read_progress(tmp_path / "b.progress")
        assert report is not None
        assert report.done == report.iterations
        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_single_worker_saves_and_reports_when_a_checkpoint_is_requested(tmp_path, monkeypatch):
    monkeypatch.setenv("PRESAGE_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.setenv("PRESAGE_CHECKPOINT", str(tmp_path))
    previous = signal.getsignal(signal.SIGUSR1)

    def log(row):
        if row["step"] == 5:
            signal.raise_signal(signal.SIGUSR1)

    try:
        train({}, log)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    report = read_progress(tmp_path / "progress")
    assert report is not None
    assert (report.iterations, report.done, report.saved) == (288, 288, 7 * 12)
    assert report.saved_at_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert (tmp_path / "elastic.ckpt").exists()


@pytest.fixture(autouse=True)
def _without_hooks(monkeypatch):
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
