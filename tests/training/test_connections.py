"""Connections of leaders and workers: tokens, limits, and messages that are not valid."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.elastic import MAX_DIGEST
from presage.training.generation import Generation, Member
from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig
from presage.training.local_job import prepare, request, start_leader
from presage.training.report import Report
from presage.training.wire import MAX_BYTES, MAX_HELLO_BYTES, connect, encode, receive, send
from presage.training.worker import peer_connections
from presage.training.worker.announcements import SessionOverError
from presage.training.worker.session import Session
from tests.support.waiting import wait_until
from tests.training.test_job_management import READY, SPECIFICATION


@pytest.fixture
def folder(tmp_path):
    """A job of two workers whose leader runs."""
    folder = JobFolder(tmp_path, "job")
    prepare(folder, JobConfig(2, silence_s=60.0))
    leader = start_leader(folder, tmp_path)
    yield folder
    leader.kill()
    leader.wait()


def test_s1_each_job_has_a_leader_process_of_its_own_that_is_found_by_name(folder, tmp_path):
    other = JobFolder(tmp_path, "another")
    prepare(other, JobConfig(1))
    leader = start_leader(other, tmp_path)
    try:
        assert other.leader().pid != folder.leader().pid
        assert other.token() != folder.token()
        assert request(other, {"op": "status"})["job"] == "another"
        assert request(folder, {"op": "status"})["job"] == "job"
    finally:
        leader.kill()
        leader.wait()
    with pytest.raises(ElasticError, match="no leader of job 'third' in"):
        JobFolder(tmp_path, "third").leader()


def test_a_second_leader_and_a_second_run_of_a_job_are_rejected(folder, tmp_path):
    with pytest.raises(ElasticError, match="job 'job' has a leader already"):
        start_leader(folder, tmp_path)
    session = Session(folder, "a", SPECIFICATION)
    session.start(Report(0, "ready"))
    with pytest.raises(ElasticError, match="runs already"):
        prepare(folder, JobConfig(1))
    session.close()


def ask(folder, message):
    address = folder.leader()
    with connect(address.host, address.port) as connection:
        send(connection, message)
        return receive(connection)


def test_wrong_tokens_and_unknown_requests_get_an_error_of_one_line(folder):
    token = folder.token()

    assert ask(folder, {"op": "status", "token": "x"})["message"] == "wrong token for job 'job'"
    assert ask(folder, {"op": "status"})["message"] == "wrong token for job 'job'"
    assert "unknown request 'x'" in ask(folder, {"op": "x", "token": token})["message"]
    answer = ask(folder, {"op": "worker", "token": token})
    assert answer["message"] == "first message of a worker is not valid"
    assert "outside the job's bounds" in ask(
        folder, {"op": "resize", "workers": 65, "token": token}
    )["message"]  # fmt: skip


def test_a_message_that_is_too_long_is_rejected_before_it_is_read(folder):
    address = folder.leader()
    with connect(address.host, address.port) as connection:
        connection.sendall((MAX_BYTES + 1).to_bytes(4, "big"))
        assert "the limit is" in receive(connection)["message"]


def test_a_first_message_is_shorter_than_later_ones(folder):
    address = folder.leader()
    with connect(address.host, address.port) as connection:
        send(connection, {"op": "status", "token": folder.token(), "more": "x" * MAX_HELLO_BYTES})
        assert f"the limit is {MAX_HELLO_BYTES}" in receive(connection)["message"]


def test_the_first_message_of_a_worker_of_the_largest_generation_is_short_enough():
    members = tuple(
        Member(f"{'n' * 63}-{i}.abcd", f"node-{i}.{'c' * 48}", 65535) for i in range(64)
    )
    generation = Generation(10**6, members, tuple(m.worker_id for m in members), Cursor(), "b")
    hello = {
        "op": "worker", "token": "t" * 43, "worker_id": "n" * 200, "port": 65535,
        "specification": SPECIFICATION | {"data_set": "d" * MAX_DIGEST},
        "generation": generation.to_message(), "report": READY.to_message(),
    }  # fmt: skip
    assert len(encode(hello)) < MAX_HELLO_BYTES


def closed(connection):
    """Whether the other process closes a connection soon."""
    connection.settimeout(5.0)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_connections_without_a_token_are_limited(folder):
    address = folder.leader()
    with ExitStack() as stack:
        for _ in range(128):
            stack.enter_context(connect(address.host, address.port))
        assert closed(stack.enter_context(connect(address.host, address.port)))
    found = wait_until(lambda: request(folder, {"op": "status"}), retried=ElasticError)
    assert found["job"] == "job"


def test_the_listener_of_a_worker_limits_its_threads_and_the_time_of_first_messages(monkeypatch):
    monkeypatch.setattr(peer_connections, "MOST_UNKNOWN", 4)
    monkeypatch.setattr(peer_connections, "TIMEOUT_S", 1.0)
    listener = peer_connections.Listener("127.0.0.1", "t", threading.Condition())
    with ExitStack() as stack:
        slow = [stack.enter_context(connect("127.0.0.1", listener.port)) for _ in range(4)]
        # Connections are accepted in order, so the four are counted before this one.
        assert closed(stack.enter_context(connect("127.0.0.1", listener.port)))
        for _ in range(3):
            slow[0].sendall(b"\0")
            time.sleep(0.3)
        assert all(closed(one) for one in slow)  # after 1 s, although bytes arrive
        hello = {"token": "t", "kind": "ring", "generation": 1, "sender": "a"}
        send(stack.enter_context(connect("127.0.0.1", listener.port)), hello)
        listener.take("ring", 1, "a", lambda: False).close()
    listener.close()


def test_a_listener_accepts_the_token_of_the_leader_and_of_its_predecessor():
    listener = peer_connections.Listener("127.0.0.1", "one", threading.Condition())
    hello = {"kind": "ring", "generation": 1, "sender": "a"}
    listener.accept_token("two")
    listener.accept_token("two")
    for token in ("one", "two"):
        with connect("127.0.0.1", listener.port) as connection:
            send(connection, {**hello, "token": token})
            listener.take("ring", 1, "a", lambda: False).close()
    listener.accept_token("three")
    with connect("127.0.0.1", listener.port) as connection:
        send(connection, {**hello, "token": "one"})
        assert receive(connection)["message"] == "wrong token"
    listener.close()


def test_a_worker_that_has_the_token_of_another_leader_tries_again(folder, tmp_path):
    token = folder.token()
    (folder.path / "token").write_text("another")
    session = Session(folder, "a", SPECIFICATION)
    restore = threading.Timer(0.5, (folder.path / "token").write_text, (token,))
    restore.start()
    session.start(READY)
    assert session.token == token
    session.close()


def test_a_peer_with_a_stale_generation_or_a_wrong_token_is_rejected(folder):
    one, other = (Session(folder, name, SPECIFICATION) for name in "ab")
    one.start(Report(0, "ready"))
    other.start(Report(0, "ready"))
    generation = one.wait(0)
    assert generation is not None
    member = generation.members[0]
    for hello, message in (
        ({"token": "x", "kind": "ring", "generation": 1, "sender": "z"}, "wrong token"),
        (
            {"token": folder.token(), "kind": "ring", "generation": 0, "sender": "z"},
            "generation 0 is over; the current one is 1",
        ),
    ):
        with connect(member.host, member.port) as connection:
            send(connection, hello)
            assert receive(connection)["message"] == message
    one.close()
    other.close()


def test_workers_are_done_when_all_are_at_the_end(folder):
    sessions = [Session(folder, name, SPECIFICATION) for name in "ab"]
    for session in sessions:
        session.start(Report(0, "ready"))
    for session in sessions:
        assert session.wait(0) is not None
        session.report(Report(1, "paused", Cursor(9, 1, 0), has_state=True, is_finished=True))
    for session in sessions:
        with pytest.raises(SessionOverError, match="done"):
            session.wait(1)
        session.close()
