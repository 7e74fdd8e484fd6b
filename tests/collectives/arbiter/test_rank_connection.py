"""I4: the connection of a rank never waits, whatever is at the arbiter's address."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from types import SimpleNamespace

import pytest

from presage.collectives.arbiter.rank_connection import RankConnection, Registration
from presage.collectives.arbiter.rank_report import EndedAllReduce, RankReports
from presage.collectives.core.demand import Call
from presage.collectives.core.messages import Adopted, Done, ViewUpdate
from presage.collectives.core.view import JobView, Reason
from presage.collectives.v1 import arbiter_pb2 as pb
from tests.collectives.arbiter.support.rank_process import Phases
from tests.support.waiting import wait_until

OWN = Registration("job", 0, 2, "secret")
PHASES = Phases(0.1, (Call(0.0, 100),), 0, 0.0)


@pytest.fixture(params=["nothing", "silent", "garbage"])
def target(request):
    """Address at which no arbiter answers."""
    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    if request.param == "nothing":
        server.close()
    if request.param == "garbage":

        def answer():
            while True:
                try:
                    peer, _ = server.accept()
                    peer.sendall(b"\0" * 100_000)
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
    yield address
    server.close()


def test_i4_no_method_waits_without_an_arbiter(target):
    connection = RankConnection(target, OWN)
    slowest_s = 0.0
    for number in range(200):
        begin_s = time.monotonic()
        assert connection.messages() == []
        connection.send(Adopted("job", 0, number))
        connection.report(PHASES, started=number, now_s=0.0)
        ended = EndedAllReduce(number, begin_s, 0.001, 100, Reason.IN_USE, pb.RING)
        connection.record(ended)
        slowest_s = max(slowest_s, time.monotonic() - begin_s)
        time.sleep(0.002)
    assert connection.switches == ()
    assert not connection.is_connected
    begin_s = time.monotonic()
    connection.close()
    assert time.monotonic() - begin_s < 0.1
    assert slowest_s < 0.1  # a busy machine; the median is microseconds


def test_i4_a_call_takes_microseconds_and_memory_is_bounded(target):
    connection = RankConnection(target, OWN)
    begin_s = time.perf_counter()
    for number in range(20_000):
        connection.messages()
        connection.record(EndedAllReduce(number, 0.0, 0.001, 100, Reason.IN_USE, pb.RING))
        connection.send(Done("job", 0, number))
    per_call_s = (time.perf_counter() - begin_s) / 20_000
    tracemalloc.start()
    for number in range(20_000):
        connection.record(EndedAllReduce(number, 0.0, 0.001, 100, Reason.IN_USE, pb.RING))
        connection.send(Done("job", 0, number))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    connection.close()
    assert held_bytes < 1 << 20  # 512 AllReduces and 1024 messages; all would be several MiB
    assert per_call_s < 100e-6  # about 2 us on a quiet machine


def test_a_rank_that_registers_again_names_the_views_that_it_may_use():
    connection = RankConnection("127.0.0.1:1", OWN)
    views = tuple(JobView(epoch, 0, b"\1") for epoch in (3, 5, 8))
    connection.remember_views(ViewUpdate("job", 0, views[:2]))
    connection.remember_views(ViewUpdate("job", 0, views))
    found = connection.wire_registration()
    assert [view.epoch for view in found.views] == [3, 5, 8]
    connection.send(Adopted("job", 0, 5))
    found = connection.wire_registration()
    assert ([view.epoch for view in found.views], found.newest_epoch) == ([5, 8], 8)
    connection.close()


def test_a_rhythm_that_cannot_be_sent_is_left_out():
    reports = RankReports()
    negative = Phases(0.1, (Call(0.0, -5),), 0, 0.0)
    reports.replace(negative, started=3, now_s=0.0)
    found = reports.take()
    assert found is not None
    assert not found.HasField("phases")
    assert found.started == 3
    assert reports.take() is None


def test_an_arbiter_gets_the_age_of_the_anchor_not_a_clock(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 5.0)
    monkeypatch.setattr("presage.collectives.arbiter.rank_report.time", clock)
    reports = RankReports()
    reports.replace(Phases(0.1, (Call(0.0, 100),), 0, 999.0), started=1, now_s=1000.0)
    clock.monotonic = lambda: 5.25
    found = reports.take()
    assert found is not None
    assert found.phases.anchor_age_s == pytest.approx(1.25)


def test_a_rank_has_no_switches_until_all_ranks_are_registered(start_switch, start_arbiter):
    arbiter = start_arbiter(start_switch())
    connection = RankConnection(arbiter.target, OWN)
    wait_until(lambda: connection.is_connected)
    assert connection.switches == ()  # rank 1 is missing
    connection.close()


def test_all_ranks_get_the_switches_and_one_that_leaves_ends_the_job(start_switch, start_arbiter):
    switch = start_switch()
    arbiter = start_arbiter(switch)
    ranks = [RankConnection(arbiter.target, Registration("job", n, 2, "t")) for n in range(2)]
    wait_until(lambda: all(rank.switches for rank in ranks))
    assert {(rank.switches[0].name, rank.switches[0].port) for rank in ranks} == {
        ("tor", switch.port)
    }
    ranks[0].close()
    wait_until(lambda: "ending" in arbiter.status().jobs[0].state)
    ranks[1].close()
    wait_until(lambda: not arbiter.status().jobs)


def test_the_reason_of_a_rejection_is_kept(start_switch, start_arbiter):
    arbiter = start_arbiter(start_switch())
    first = RankConnection(arbiter.target, Registration("job", 0, 2, "t"))
    wait_until(lambda: first.is_connected)
    for own, reason in [
        (Registration("job", 1, 3, "t"), "has 2 ranks"),
        (Registration("job", 1, 2, "other"), "another job has the name"),
        (Registration("no name!", 0, 2, "t"), "letters, digits"),
        (Registration("third", 0, 2, "t", agreement="two_phase"), "two_phase"),
    ]:
        connection = RankConnection(arbiter.target, own)
        wait_until(lambda: reason in connection.problem)  # noqa: B023
        connection.close()
    first.close()


def test_a_job_of_one_rank_is_registered_and_runs_by_ring(start_switch, start_arbiter):
    arbiter = start_arbiter(start_switch())
    connection = RankConnection(arbiter.target, Registration("single", 0, 1, "t"))
    wait_until(lambda: connection.is_connected)
    connection.report(PHASES, started=5, now_s=0.0)
    wait_until(lambda: arbiter.status().jobs[0].started == 5)
    assert arbiter.status().jobs[0].state == "ring: it has one rank"
    connection.close()
