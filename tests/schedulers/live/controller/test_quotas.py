"""Tests of quotas of tokens, recorded principals and message size limits."""

from __future__ import annotations

import json
import signal

import grpc
import pytest

from presage.errors import ForbiddenError, OverloadedError, UnauthenticatedError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.live.protocol.wire import MAX_JOB_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import until
from tests.schedulers.live.controller.users import DEVICE, Users

pytestmark = pytest.mark.timeout(240)


def small(*names):
    return [pb.Job(job_id=name, command=["true"], gpus=1) for name in names]


def large(count):
    text = "x" * (MAX_JOB_BYTES - 1000)
    return [
        pb.Job(job_id=f"large{n}", command=["true"], environment={"A": text}, gpus=1)
        for n in range(count)
    ]


def test_the_job_quota_of_a_token_holds_also_after_a_restart(tmp_path):
    users = Users(tmp_path, ann={"max-jobs": "2"})
    refused = pytest.raises(OverloadedError, match=r"quota of 'ann': .* 3 jobs .* allows 2; retry")
    with users.client("ann") as ann, users.client("bob") as bob:
        ann.submit(small("a", "b"))
        assert ann.submit(small("a", "b")) == ["a", "b"]
        with refused:
            ann.submit(small("c"))
        users.stop(signal.SIGKILL)
        users.start()
        with refused:
            ann.submit(small("c"))
        bob.submit(small("d", "e", "f"))
        ann.cancel(["a"])
        ann.submit(small("c"))
        with refused:
            ann.submit(small("g"))
        assert {row.job.job_id for row in ann.list().jobs} == {"b", "c", "d", "e", "f"}
    users.stop()


def test_the_size_quota_of_a_token_holds(tmp_path):
    users = Users(tmp_path, ann={"max-bytes": str(3 * MAX_JOB_BYTES)})
    with users.client("ann") as ann:
        ann.submit(large(2))
        with pytest.raises(OverloadedError, match=r"bytes of jobs that have not ended, and its"):
            ann.submit(large(4)[2:])
        assert len(ann.list().jobs) == 2
        ann.submit(small("a"))
    users.stop()


def test_principals_are_in_the_journal_and_the_access_log(tmp_path):
    users = Users(tmp_path, "--access-log")
    with users.client("ann") as ann, users.client("bob") as bob, users.client("root") as root:
        ann.submit(small("anns"))
        bob.submit(small("bobs"))
        with pytest.raises(ForbiddenError):
            bob.cancel(["anns"])
        root.cancel(["anns"])
        with users.agent("n0", "n0"):
            until(lambda: root.list().nodes)
            root.drain("n0")
        history = ann.explain("anns").history
        unknown = ClusterClient(users.target, credentials=Credentials("presage-unknown"))
        with unknown, pytest.raises(UnauthenticatedError):
            unknown.list()
    users.stop()

    assert [(event.type, event.principal) for event in history] == [
        ("Submitted", "ann"),
        ("Ended", "root"),
    ]
    with Journal.open(str(users.journal)) as journal:
        rows = [entry.record for entry in journal.read()]
    principals = {
        (row["type"], row.get("job_id") or row.get("node")): row.get("principal") for row in rows
    }
    assert principals["Submitted", "anns"] == "ann"
    assert principals["Ended", "anns"] == "root"
    assert principals["Submitted", "bobs"] == "bob"
    assert principals["NodeJoined", "n0"] == "n0"
    assert principals["NodeDrained", "n0"] == "root"
    assert principals["ClusterCreated", None] is None
    lines = [json.loads(line) for line in users.log.read_text().splitlines() if line[:1] == "{"]
    calls = {(row["method"], row["code"], row["client"]) for row in lines if row["event"] == "call"}
    assert {
        ("Submit", "OK", "ann"), ("Cancel", "PERMISSION_DENIED", "bob"), ("Cancel", "OK", "root"),
        ("Drain", "OK", "root"), ("List", "UNAUTHENTICATED", "127.0.0.1"),
    } <= calls  # fmt: skip


def test_large_jobs_are_sent_in_chunks(tmp_path):
    users = Users(tmp_path, n0={"node": "n0", "devices": "h100:12"})
    with users.client("ann") as ann:
        assert ann.submit(large(12)) == []
        assert len(ann.submit(large(12))) == 12
    names = {f"large{number}" for number in range(12)}
    with users.agent("n0", "n0", *[DEVICE] * 12) as agent:
        commands = agent.commands_for(*names)
        assert commands.ByteSize() > 11 * MAX_JOB_BYTES
        assert all(len(one.job.environment["A"]) > 2**19 for one in commands.tasks)
    users.stop()


def test_a_too_large_message_is_rejected(tmp_path):
    users = Users(tmp_path)
    request = pb.SubmitRequest(jobs=large(5))
    with grpc.insecure_channel(users.target) as channel:
        stub = pb_grpc.ClusterServiceStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.Submit(request, metadata=Credentials(users.tokens["ann"]).metadata, timeout=20)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with users.client("ann") as ann:
        assert not ann.list().jobs
    users.stop()
