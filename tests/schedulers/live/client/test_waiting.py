"""Waiting for jobs goes on while their controller is away."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from presage.errors import ServiceError, UnknownJobError
from presage.schedulers.live.client import waiting
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import ENVIRONMENT, PRESAGE, until


class FakeClient:
    """A client that is answered by these, one after the other."""

    def __init__(self, *answers: Exception | dict[str, pb.Phase]) -> None:
        self.answers = [*answers]
        self.asked: list[list[str]] = []

    def list(self, job_ids):
        self.asked.append(job_ids)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        rows = [pb.JobStatus(job=pb.Job(job_id=k), phase=v) for k, v in answer.items()]
        return pb.ListResponse(jobs=rows)


AWAY = ServiceError("no controller")


def waited(monkeypatch, told: Any, *names: str) -> tuple[list[str], list[ServiceError]]:
    """Jobs as they ended, and what was said of the controller."""
    monkeypatch.setattr(waiting, "POLL_S", 0.0)
    said: list[ServiceError] = []
    rows = waiting.jobs_as_completed(told, names, on_away=said.append)
    return [row.job.job_id for row in rows], said


def test_jobs_come_as_they_end_and_those_that_ended_are_not_asked_for_again(monkeypatch):
    told = FakeClient(
        {"a": pb.RUNNING, "b": pb.FAILED}, {"a": pb.LEAVING}, {"a": pb.WAITING}, {"a": pb.FINISHED}
    )

    assert waited(monkeypatch, told, "a", "b", "a") == (["b", "a"], [])
    assert told.asked == [["a", "b"], ["a"], ["a"], ["a"]]


def test_a_controller_that_is_away_is_asked_again_and_each_absence_is_told_once(monkeypatch):
    here, over = {"a": pb.RUNNING}, {"a": pb.CANCELLED}
    told = FakeClient(here, AWAY, AWAY, here, AWAY, over)

    assert waited(monkeypatch, told, "a") == (["a"], [AWAY, AWAY])


def test_what_waiting_does_not_help_is_no_reason_to_wait(monkeypatch):
    for error, answers in (
        (ServiceError, [AWAY]),  # a wrong address, perhaps
        (UnknownJobError, [UnknownJobError("there is no job 'a'")]),
        (UnknownJobError, [{"a": pb.RUNNING}, AWAY, UnknownJobError("there is no job 'a'")]),
    ):
        with pytest.raises(error):
            waited(monkeypatch, FakeClient(*answers), "a")


def test_the_command_waits_for_a_controller_that_comes_back(cluster):
    first = cluster.controller()
    until(lambda: cluster.client.list().policy)
    cluster.client.submit([pb.Job(job_id=name, command=["true"]) for name in ("early", "late")])
    cluster.client.cancel(["early"])
    with subprocess.Popen(
        [*PRESAGE, "wait", "--controller", cluster.target, "early", "late"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "job 'early' is cancelled: it was cancelled\n"
        first.kill()
        first.wait()
        assert "no controller at" in process.stderr.readline()
        cluster.controller()
        until(lambda: cluster.client.list().policy)
        cluster.client.cancel(["late"])
        assert process.stderr.readline() == "job 'late' is cancelled: it was cancelled\n"
        assert process.wait(30.0) == 1
