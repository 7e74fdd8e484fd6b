"""Tests of the permissions of clients on jobs and nodes."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import grpc
import pytest

from presage.errors import ForbiddenError, InvalidJobError, UnauthenticatedError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account, local_token_finder, local_token_path
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import until
from tests.schedulers.live.controller.users import DEVICE, GIB, PRESAGE, Agent, Users
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port

SECRETS = (b"hunter2", b"hunter3", b"/home/ann", b"secret-model")
Code = grpc.StatusCode

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    users = Users(tmp_path_factory.mktemp("users"))
    with users.client("ann") as ann, users.client("bob") as bob:
        ann.submit([users.job("anns", model="secret-model", user="root")])
        bob.submit([pb.Job(job_id="bobs", command=["true"], gpus=2)])
    yield users
    users.stop()


def refused(users, name, node, *devices):
    """Return the status of an attempt to attach as a node."""
    with users.agent(name, node, *devices) as agent, pytest.raises(grpc.RpcError) as error:
        agent.commands()
    return error.value


@pytest.mark.parametrize("name", ["ann", "eve", "root"])
def test_a_user_cannot_attach_as_a_node(users, name):
    error = refused(users, name, "n0")

    assert error.code() is Code.PERMISSION_DENIED
    assert "lacks the role 'agent'" in error.details()


def test_a_node_cannot_attach_as_another_node(users):
    error = refused(users, "n0", "n1")

    assert error.code() is Code.PERMISSION_DENIED
    assert "'n0' may attach as node 'n0', not 'n1'" in error.details()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([DEVICE] * 2, "declares 2 devices of kind 'h100', and its token allows 1"),
        ([pb.Device(kind="b200", memory_bytes=180 * GIB)], "kind 'b200', and its token allows 0"),
        ([DEVICE, pb.Device(kind="x", memory_bytes=1)], "1 devices of kind 'x'"),
    ],
)
def test_a_node_cannot_declare_devices_beyond_its_token(users, devices, expected):
    error = refused(users, "n0", "n0", *devices)

    assert error.code() is Code.PERMISSION_DENIED
    assert expected in error.details()


def test_an_attached_node_cannot_declare_more_devices(users):
    with users.agent("n1", "n1", problem="it is given no jobs") as agent:
        agent.commands()
        agent.report(devices=[DEVICE] * 2)
        with pytest.raises(grpc.RpcError) as error:
            while True:
                agent.commands()
        assert error.value.code() is Code.PERMISSION_DENIED


@pytest.mark.parametrize("method", ["submit", "cancel", "list", "explain", "drain"])
def test_a_node_cannot_call_methods_for_users(users, method):
    arguments: dict[str, list[Any]] = {
        "submit": [[users.job("x")]], "cancel": [["anns"]], "explain": ["anns"], "drain": ["n0"]
    }  # fmt: skip
    with users.client("n0") as n0, pytest.raises(ForbiddenError, match="lacks the role"):
        getattr(n0, method)(*arguments.get(method, []))


def test_another_user_can_neither_cancel_nor_explain_a_job_nor_read_its_log(users):
    for name in ("bob", "eve"):
        with users.client(name) as other:
            for ask in (
                lambda other=other: other.cancel(["anns"]),
                lambda other=other: other.explain("anns"),
                lambda other=other: list(other.logs("anns")),
            ):
                with pytest.raises(ForbiddenError, match=f"job 'anns' is not yours, '{name}'"):
                    ask()
    with users.client("bob") as bob, pytest.raises(ForbiddenError):
        bob.cancel(["bobs", "anns"])
    with users.client("ann") as ann:
        rows = {row.job.job_id: row for row in ann.list().jobs}
        assert {row.phase for row in rows.values()} == {pb.WAITING}


@pytest.mark.parametrize("name", ["bob", "eve"])
def test_another_user_sees_only_the_public_part_of_a_job(users, name):
    with users.client(name) as other:
        found = other.list(failed_s=1e6)
        (row,) = (row for row in found.jobs if row.job.job_id == "anns")
        events = watched(other)

    for message in (found, *events):
        assert not [secret for secret in SECRETS if secret in message.SerializeToString()]
    assert (row.job.user, row.job.gpus, row.phase) == ("ann", 1, pb.WAITING)
    assert {field.name for field, _ in row.job.ListFields()} == {"job_id", "user", "gpus"}
    assert not row.reason and not row.predictions
    assert [event.details for event in events if event.job_id == "anns"] == [""]
    assert [event.principal for event in events if event.job_id == "anns"] == [""]


def test_owner_and_administrator_see_all_but_the_environment(users):
    for name in ("ann", "root"):
        with users.client(name) as client:
            (row,) = client.list(["anns"]).jobs
            expected = client.explain("anns")
            (event,) = [event for event in watched(client) if event.job_id == "anns"]
        assert list(row.job.command) == ["train", "--key=hunter2"]
        assert list(expected.status.job.command) == ["train", "--key=hunter2"]
        assert not row.job.environment and not expected.status.job.environment
        assert (event.principal, event.details) == ("ann", "best-effort")
        assert [event.principal for event in expected.history] == ["ann"]


def watched(client):
    """Return all events so far."""
    last = client.list().last_entry
    events = []
    for event in client.watch(after=0):
        events.append(event)
        if event.entry >= last:
            return events
    return events


def test_the_controller_sets_the_owner_of_a_job(users):
    with users.client("root") as root:
        rows = {row.job.job_id: row.job.user for row in root.list().jobs}
    assert rows == {"anns": "ann", "bobs": "bob"}


def test_the_id_of_another_users_job_is_rejected_without_details(users):
    with users.client("bob") as bob, users.client("ann") as ann:
        messages = []
        for job in (
            users.job("anns", model="secret-model"),
            pb.Job(job_id="anns", command=["other"], gpus=1),
        ):
            with pytest.raises(InvalidJobError) as error:
                bob.submit([job])
            messages.append(str(error.value))
        assert messages[0] == messages[1]
        assert messages[0].startswith("job 'anns': another job has the same id")
        assert ann.submit([users.job("anns", model="secret-model")]) == ["anns"]


def test_a_job_runs_as_its_submitters_account(users):
    with users.agent("n0", "n0") as agent:
        (order,) = agent.commands_for("anns").tasks

    assert (order.run_as, order.job.user) == ("anna", "ann")


def test_a_client_without_a_token_is_rejected_if_tokens_are_required(users):
    refused = pytest.raises(UnauthenticatedError, match="pass --token-file FILE")
    with ClusterClient(users.target) as client, refused:
        client.list()


def test_only_the_requested_node_can_send_a_part_of_a_log(users):
    with users.agent("n0", "n0") as agent, users.client("ann") as ann:
        (order,) = agent.commands_for("anns").tasks
        task = pb.Task(job_id="anns", attempt=order.attempt, phase=pb.TASK_RUNNING, ran_s=1.0)
        agent.report(task)
        until(lambda: ann.list(["anns"]).jobs[0].phase == pb.RUNNING)
        log = ann.logs("anns")
        read = []
        reading = threading.Thread(target=lambda: read.extend(log))
        reading.start()
        wanted = None
        while wanted is None:
            wanted = next(iter(agent.commands().log_requests), None)
        forged = pb.LogPart(request_id=wanted.request_id, content=b"forged", ended=True)
        for name in ("n1", "ann"):
            with pytest.raises(grpc.RpcError) as error:
                agent.stub.SendLog(forged, metadata=Credentials(users.tokens[name]).metadata)
            assert error.value.code() is Code.PERMISSION_DENIED
        true = pb.LogPart(request_id=wanted.request_id, content=b"true", ended=True)
        agent.stub.SendLog(true, metadata=agent.metadata)
        agent.report(task, commands=1)
        until(lambda: read)
        assert read[0] == b"true"
        agent.close()
        reading.join(40)


# Without tokens --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the target of a controller without tokens, and the view of other users."""
    folder, port = tmp_path_factory.mktemp("alone"), free_port()
    command = [*PRESAGE, "controller", "--port", port, "--journal", folder / "c.db"]
    with (folder / "log").open("ab") as messages:
        process = subprocess.Popen([*map(str, command)], stdout=messages, stderr=messages)
    target = f"127.0.0.1:{port}"
    with ClusterClient(target, timeout_s=20.0) as client:
        until(client.list)
    yield target
    process.terminate()
    process.wait(30)
    assert not local_token_path(port).exists()


@pytest.fixture
def another_user(monkeypatch, tmp_path):
    """Hide the local token, as for another user of the machine."""

    def become():
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    return become


def test_the_user_that_started_a_controller_needs_no_token(alone):
    with ClusterClient(alone, timeout_s=20.0) as client:
        client.submit([pb.Job(job_id="mine", command=["train", "--key=hunter2"], gpus=1)])
        (row,) = client.list(["mine"]).jobs
        assert (row.job.user, list(row.job.command)) == (account(), ["train", "--key=hunter2"])
        assert client.explain("mine").history[0].principal == account()
    with grpc.insecure_channel(alone) as channel:
        token = local_token_finder(alone)()
        agent = Agent(channel, token, "any", (DEVICE,), "")
        assert agent.commands_for("mine").tasks[0].run_as == account()
        agent.close()


def test_anonymous_clients_see_only_the_public_part_of_jobs(alone, another_user):
    another_user()
    with ClusterClient(alone, timeout_s=20.0) as client:
        (row,) = client.list().jobs
        assert row.job.job_id == "mine"
        assert b"hunter2" not in client.list().SerializeToString()
        assert all(b"hunter2" not in event.SerializeToString() for event in watched(client))
        for ask in (
            lambda: client.submit([pb.Job(job_id="x", command=["true"])]),
            lambda: client.cancel(["mine"]),
            lambda: client.explain("mine"),
            lambda: client.drain("any"),
            lambda: list(client.logs("mine")),
        ):
            with pytest.raises((ForbiddenError, UnauthenticatedError)):
                ask()
    with grpc.insecure_channel(alone) as channel, pytest.raises(grpc.RpcError) as error:
        Agent(channel, "", "any", (DEVICE,), "").commands()
    assert error.value.code() is Code.UNAUTHENTICATED
    unknown = pytest.raises(UnauthenticatedError, match="does not know the token")
    with ClusterClient(alone, credentials=Credentials("wrong")) as client, unknown:
        client.list()


def test_clients_find_the_new_local_token_of_a_restarted_controller(tmp_path):
    port = free_port()
    command = [*PRESAGE, "controller", "--port", port, "--journal", tmp_path / "c.db"]
    with ClusterClient(f"127.0.0.1:{port}", timeout_s=20.0) as client:
        for number in range(2):
            process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL)
            until(lambda: [client.submit([pb.Job(job_id="a", command=["true"])])])
            process.kill()
            process.wait()
            assert local_token_path(port).exists(), number


def test_with_certificates_only_the_common_name_is_the_node_name(tmp_path):
    authority = make_authority(tmp_path, "authority")
    server, own = (make_certificate(tmp_path, name, authority) for name in ("server", "n0"))
    port = free_port()
    command = [
        *PRESAGE, "controller", "--port", port, "--journal", tmp_path / "c.db",
        "--tls-cert", server[0], "--tls-key", server[1], "--client-ca", authority[0],
    ]  # fmt: skip
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL)
    shown = Credentials(ca=authority[0], certificate=own[0], key=own[1])
    try:
        with ClusterClient(f"127.0.0.1:{port}", credentials=shown, timeout_s=20.0) as client:
            until(client.list)
        credentials = shown.channel_credentials()
        assert credentials is not None
        channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
        with channel:
            agent = Agent(channel, "", "n0", (DEVICE,) * 3, "")
            assert agent.commands().lease_s
            agent.close()
            with pytest.raises(grpc.RpcError) as error:
                Agent(channel, "", "n1", (DEVICE,), "").commands()
            assert "'n0' may attach as node 'n0', not 'n1'" in str(error.value.details())
    finally:
        process.terminate()
        process.wait(30)


def test_the_history_of_an_earlier_job_is_hidden_from_a_later_owner_of_its_id(tmp_path):
    users = Users(tmp_path, "--keep-ended", 0)
    with users.client("ann") as ann, users.client("bob") as bob:
        ann.submit([users.job("same")])
        ann.cancel(["same"])
        until(lambda: not ann.list(ended=True).jobs)
        bob.submit([pb.Job(job_id="same", command=["true"])])
        seen = [event for event in watched(bob) if event.job_id == "same"]

        assert [(event.type, event.principal) for event in seen] == [
            ("Submitted", ""), ("Ended", ""), ("Submitted", "bob")
        ]  # fmt: skip
        assert [event.principal for event in bob.explain("same").history] == ["bob"]
    users.stop()
