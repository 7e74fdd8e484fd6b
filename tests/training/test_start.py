"""Workers that start before their leader, or without one."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from presage.errors import ElasticError
from presage.training.job_folder import LEFT, JobFolder
from presage.training.report import Report
from presage.training.worker import session as session_module
from presage.training.worker.session import Session
from tests.support.waiting import stays_true
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once


@pytest.mark.parametrize("is_published", [True, False], ids=["unreachable", "unpublished"])
def test_a_worker_waits_for_a_leader_that_starts_later(tmp_path, is_published):
    with running(tmp_path, workers=2) as job:
        job.kill_leader()
        if not is_published:
            job.folder.withdraw()
        job.start("a", "b")
        assert stays_true(lambda: all(one.is_alive() for one in job.workers.values()), 1.0)
        job.restart_leader()
        job.finish()

        check_exactly_once(job)
        check_equals_uninterrupted(job)


def test_a_worker_that_waits_for_a_leader_leaves_on_sigterm(tmp_path):
    with running(tmp_path, workers=1) as job:
        leader = job.folder.leader()
        job.kill_leader()
        with socket.create_server((leader.host, leader.port)) as listening:
            job.start("a", gates={"0": "never"})
            listening.settimeout(60)
            listening.accept()[0].close()  # it looks for its leader
        job.kill("a", signal.SIGTERM)
        job.workers["a"].join(30)

        assert job.workers["a"].exitcode in (LEFT, -signal.SIGTERM)  # -15 if it was not at begin()


def test_without_a_folder_a_worker_fails_at_once_and_without_a_leader_after_a_while(
    tmp_path, monkeypatch
):
    start_s = time.monotonic()
    with running(tmp_path, workers=1) as job:
        job.start("a", state=str(tmp_path))
        job.finish()
    missing = Session(JobFolder(tmp_path, "missing"), "a.1", {})
    with pytest.raises(ElasticError, match="no leader of job 'missing' in"):
        missing.start(Report())
    assert time.monotonic() - start_s < session_module.START_TIMEOUT_S

    monkeypatch.setattr(session_module, "START_TIMEOUT_S", 0.3)
    waiting = Session(JobFolder(tmp_path, "job"), "a.1", {})
    with pytest.raises(ElasticError, match="no leader of job 'job' in") as error:
        waiting.start(Report())
    assert "\n" not in str(error.value)
