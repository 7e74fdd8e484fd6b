"""Tests of requests that the service rejects, and of its reads of the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presage.errors import InvalidRequestError
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.controller.journal.records import LeaseChanged, record_to_json
from presage.schedulers.live.controller.server.cluster_service import PAGE, ClusterService
from presage.schedulers.live.protocol.wire import MAX_JOB_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.callers import Caller
from presage.serving.server.call import Call

BY_ADMIN = Call("", "", Caller("root", frozenset({"admin"})))


def test_a_too_large_job_is_rejected_with_its_name():
    unused: Any = None
    service = ClusterService(unused, unused, unused, "fifo")
    large = pb.Job(job_id="large", command=["train"], environment={"DATA": "x" * MAX_JOB_BYTES})
    request = pb.SubmitRequest(jobs=[pb.Job(job_id="small", command=["train"]), large])

    with pytest.raises(InvalidRequestError, match=r"job 'large' has .* move large values to files"):
        asyncio.run(service.submit(request.SerializeToString(), BY_ADMIN))


async def _nothing():
    none: list[bytes] = []
    for request in none:
        yield request


async def _some(stream, count):
    return [await anext(stream) for _ in range(count)]


def test_an_empty_request_stream_is_a_default_request(tmp_path: Path):
    unused: Any = None

    class Log:
        async def stream(self, request, check):
            yield request.job_id.encode()

    with Journal.open(f"{tmp_path}/journal.db") as journal:
        journal.append([record_to_json(LeaseChanged(20.0, 0.0))])
        working: Any = SimpleNamespace(journal=journal)
        log: Any = Log()
        service = ClusterService(working, unused, log, "fifo")
        assert len(asyncio.run(_some(service.watch(_nothing(), BY_ADMIN), 1))) == 1
        assert asyncio.run(_some(service.logs(_nothing(), BY_ADMIN), 1)) == [b""]


def test_each_watched_entry_is_read_once(tmp_path: Path, monkeypatch):
    unused: Any = None
    with Journal.open(f"{tmp_path}/journal.db") as journal:
        records = [
            record_to_json(LeaseChanged(20.0, float(number))) for number in range(2 * PAGE + 10)
        ]
        journal.append(records)
        read: list[int] = []
        run = journal.store.run

        def noted(statement, *values):
            rows = run(statement, *values)
            read.extend(row[0] for row in rows if len(row) == 5)  # an entry
            return rows

        monkeypatch.setattr(journal.store, "run", noted)
        working: Any = SimpleNamespace(journal=journal)
        service = ClusterService(working, unused, unused, "fifo")
        asyncio.run(_some(service.watch(_nothing(), BY_ADMIN), len(records)))

    assert read == list(range(1, len(records) + 1))
