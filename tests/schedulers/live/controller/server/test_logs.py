"""Tests of logs that are fetched from simulated agents."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from presage.errors import NotYetError
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.live.controller.server import job_logs as logs_module
from presage.schedulers.live.controller.server.job_logs import Logs
from presage.schedulers.v1 import cluster_pb2 as pb


def job(stage=Stage.RUNNING, attempt=1, starts=1):
    return SimpleNamespace(
        job_id="job", node="a", stage=stage, attempt=attempt, starts=starts, member_nodes={}
    )


class Controller:
    """Controller whose only job has the next of several states at each read."""

    def __init__(self, *jobs):
        self._jobs = list(jobs)

    async def read(self, at):
        one = self._jobs.pop(0) if len(self._jobs) > 1 else self._jobs[0]
        return at(SimpleNamespace(job_of_log=lambda job_id: one), 0.0)

    def commands_event(self, node):
        return asyncio.Event()


def read(controller: Any, says, **fields) -> bytes:
    """Return a job's log; ``says`` returns the log of an attempt and whether it ended."""

    async def answer(logs: Logs) -> None:
        while True:
            for request in logs.requests("a"):
                content, ended = says(request.task.attempt)
                start = min(request.offset, len(content))
                logs.receive(
                    pb.LogPart(
                        request_id=request.request_id,
                        content=content[start:],
                        offset=start,
                        ended=ended,
                    )
                )
            await asyncio.sleep(0.005)

    async def main() -> bytes:
        logs = Logs(controller)
        answering = asyncio.create_task(answer(logs))
        found = [part async for part in logs.stream(pb.LogsRequest(job_id="job", **fields))]
        answering.cancel()
        return b"".join(found)

    return asyncio.run(asyncio.wait_for(main(), 60.0))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(logs_module, "FOLLOW_S", 0.01)


def test_a_job_that_has_not_run_has_no_log():
    waits = Controller(job(Stage.WAITING, attempt=0, starts=0))
    with pytest.raises(NotYetError, match="'job' has not run yet"):
        read(waits, pytest.fail)


def test_following_a_log_reads_the_next_attempt_from_the_beginning():
    wrote = {1: (b"the first one\n", True), 2: (b"the second one\n", True)}
    evicted = [job(), job(Stage.LEAVING), job(Stage.WAITING), job(Stage.WAITING)]
    controller = Controller(*evicted, job(Stage.PLACED, attempt=2), job(Stage.FINISHED, attempt=2))

    assert read(controller, wrote.get, follow=True) == b"the first one\nthe second one\n"


def test_following_a_log_waits_until_the_agent_has_received_the_job():
    heard = iter([(b"", True), (b"", True), (b"up\n", True)])
    controller = Controller(job(Stage.PLACED), job(Stage.PLACED), job(Stage.FINISHED))

    assert read(controller, lambda attempt: next(heard), follow=True) == b"up\n"


def test_a_log_is_read_to_its_current_end_unless_followed():
    assert read(Controller(job()), lambda attempt: (b"so far", False)) == b"so far"
    assert read(Controller(job(Stage.PLACED)), lambda attempt: (b"", True)) == b""
    assert read(Controller(job()), lambda attempt: (b"so far", False), offset=3) == b"far"
