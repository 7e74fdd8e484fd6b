"""Clients that can connect, and what a hostile client cannot do."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import grpc
import pytest

from presage.collectives.arbiter.client import ArbiterClient
from presage.collectives.arbiter.rank_connection import RankConnection, Registration
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.collectives.v1 import arbiter_pb2_grpc as pb_grpc
from presage.errors import UnauthenticatedError
from presage.serving.client.credentials import Credentials
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


def test_another_address_than_loopback_needs_tls_and_tokens(start_switch, start_arbiter, tmp_path):
    switch = start_switch()
    refused = start_arbiter(switch, "--host", "0.0.0.0")
    assert refused.process.wait(10) == 1
    assert "not a loopback address" in refused.lines[-1]
    refused = start_arbiter(switch, "--host", "0.0.0.0", "--allow-remote")
    assert refused.process.wait(10) == 1
    assert "--tokens" in refused.lines[-1]


def test_without_tokens_only_the_own_user_may_run_jobs(start_switch, start_arbiter, monkeypatch):
    arbiter = start_arbiter(start_switch())
    own = RankConnection(arbiter.target, Registration("job", 0, 2, "t"))
    wait_until(lambda: own.is_connected)
    own.close()
    monkeypatch.setenv("XDG_STATE_HOME", "/nowhere")  # as another user, without the local token
    other = RankConnection(arbiter.target, Registration("other", 0, 2, "t"))
    wait_until(lambda: "'submit'" in other.problem)
    assert arbiter.status().agreement == "in_band"
    other.close()


def test_with_tokens_each_role_may_do_its_own(start_switch, start_arbiter, tmp_path):
    tokens = tmp_path / "tokens"
    secrets = {}
    for name, role in (("rank", "submit"), ("viewer", "view")):
        command = [sys.executable, "-m", "presage", "token", name, "--role", role]
        command += ["--file", str(tokens)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        secrets[name] = done.stdout.split()[-1]
    arbiter = start_arbiter(start_switch(), "--tokens", str(tokens))
    with ArbiterClient(arbiter.target) as client, pytest.raises(UnauthenticatedError):
        client.status()
    with ArbiterClient(arbiter.target, credentials=Credentials(token=secrets["viewer"])) as client:
        assert client.status().agreement == "in_band"
    own = Registration("job", 0, 2, "t")
    viewer = RankConnection(arbiter.target, own, token=secrets["viewer"])
    wait_until(lambda: "'submit'" in viewer.problem)
    viewer.close()
    rank = RankConnection(arbiter.target, own, token=secrets["rank"])
    wait_until(lambda: rank.is_connected)
    rank.close()


def registration(job, rank=0, **more):
    content = pb.Registration(
        job=job, rank=rank, ranks=2, job_token_sha256=b"x" * 32, instance="i", agreement="in_band",
        **more,
    )  # fmt: skip
    return pb.RankMessage(registration=content)


def flood(target):
    """Send what no rank would; return the open calls."""
    channel = grpc.insecure_channel(target)
    stub = pb_grpc.ArbiterServiceStub(channel)
    metadata = Credentials().metadata_for(target)()
    open_calls = []
    raw: Any = channel.stream_stream("/presage.collectives.v1.ArbiterService/Connect")
    messages = [
        [b"\xff" * 1000],
        [b""],
        [pb.RankMessage(report=pb.Report(started=1)).SerializeToString()],
        [registration("forged", newest_epoch=2**63).SerializeToString()],
        [registration("x" * 1000).SerializeToString()],
        [registration("big", views=[pb.JobView(epoch=1, decisions=b"\7" * 9)]).SerializeToString()],
        [b"\0" * (2 << 20)],
    ]
    for content in messages:
        with pytest.raises(grpc.RpcError) as rejected:
            list(raw(iter(content), timeout=10, metadata=metadata))
        assert rejected.value.code() is not grpc.StatusCode.UNAUTHENTICATED
    for number in range(60):

        def forever(number=number):
            yield registration(f"hostile-{number}")
            while True:
                yield pb.RankMessage(adopted=pb.Adopted(epoch=2**62))
                yield pb.RankMessage(ack=pb.Ack(tag=2**62, number=3))
                yield pb.RankMessage(report=pb.Report(started=2**62))
                time.sleep(0.02)

        open_calls.append(
            stub.Connect(forever(), metadata=metadata)
        )  # whose responses are never read
    return channel, open_calls


def test_hostile_clients_do_not_stop_others(start_switch, start_arbiter, start_job):
    arbiter = start_arbiter(start_switch(), "--max-jobs", "40", "--horizon", "2")
    job = start_job(arbiter.target, "honest", seconds=60)
    wait_until(lambda: job.inc_since(0.0))
    channel, calls = flood(arbiter.target)
    since_s = time.time()
    wait_until(lambda: job.inc_since(since_s + 4), 24)
    found = arbiter.status()
    assert len(found.jobs) <= 40
    assert found.epoch < 1000
    job.check_no_number_is_split()
    for call in calls:
        with suppress(grpc.RpcError):
            call.cancel()
    channel.close()


def test_streams_are_bounded(start_switch, start_arbiter):
    arbiter = start_arbiter(start_switch(), "--max-ranks", "2")
    ranks = [RankConnection(arbiter.target, Registration("job", n, 3, "t")) for n in range(3)]
    wait_until(lambda: any("ranks are connected" in rank.problem for rank in ranks))
    wait_until(lambda: sum(rank.is_connected for rank in ranks) == 2)
    for rank in ranks:
        rank.close()


def test_metrics_are_served(start_switch, start_arbiter):
    import socket
    from urllib.request import urlopen

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_arbiter(start_switch(), "--metrics-port", str(port))
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert 'presage_inc_switch_up{switch="tor"} 1.0' in text
    assert 'presage_inc_jobs{arbitrated="true"} 0.0' in text
