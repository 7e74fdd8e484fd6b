"""Tests of waiting for jobs while their controller is unavailable."""

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
    """Client with a sequence of responses."""

    def __init__(self, *responses: Exception | dict[str, pb.Phase]) -> None:
        self.responses = [*responses]
        self.requests: list[list[str]] = []

    def list(self, job_ids):
        self.requests.append(job_ids)
        answer = self.responses.pop(0)
        if isinstance(answer, Exception):
            raise answer
        rows = [pb.JobStatus(job=pb.Job(job_id=k), phase=v) for k, v in answer.items()]
        return pb.ListResponse(jobs=rows)


AWAY = ServiceError("no controller")


def wait_for_jobs(monkeypatch, client: Any, *names: str) -> tuple[list[str], list[ServiceError]]:
    """Return the jobs in the order of their ends, and the reported errors."""
    monkeypatch.setattr(waiting, "POLL_S", 0.0)
    errors: list[ServiceError] = []
    rows = waiting.jobs_as_completed(client, names, on_away=errors.append)
    return [row.job.job_id for row in rows], errors


def test_jobs_are_yielded_as_they_end_and_not_requested_again(monkeypatch):
    client = FakeClient(
        {"a": pb.RUNNING, "b": pb.FAILED}, {"a": pb.LEAVING}, {"a": pb.WAITING}, {"a": pb.FINISHED}
    )

    assert wait_for_jobs(monkeypatch, client, "a", "b", "a") == (["b", "a"], [])
    assert client.requests == [["a", "b"], ["a"], ["a"], ["a"]]


def test_an_unavailable_controller_is_polled_and_reported_once(monkeypatch):
    here, over = {"a": pb.RUNNING}, {"a": pb.CANCELLED}
    client = FakeClient(here, AWAY, AWAY, here, AWAY, over)

    assert wait_for_jobs(monkeypatch, client, "a") == (["a"], [AWAY, AWAY])


def test_permanent_errors_are_raised_without_waiting(monkeypatch):
    for error, responses in (
        (ServiceError, [AWAY]),  # a wrong address, perhaps
        (UnknownJobError, [UnknownJobError("there is no job 'a'")]),
        (UnknownJobError, [{"a": pb.RUNNING}, AWAY, UnknownJobError("there is no job 'a'")]),
    ):
        with pytest.raises(error):
            wait_for_jobs(monkeypatch, FakeClient(*responses), "a")


def test_wait_continues_when_the_controller_returns(cluster):
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
