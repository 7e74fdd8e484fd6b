"""Contract of both aggregators: ranks that die or fall silent, garbage, and restarts."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presage.collectives.switch.errors import RankLostError, SwitchLostError
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from presage.collectives.switch.protocol import MAGIC, Code, Header, Kind, frame
from tests.collectives.switch.ranks import (
    RawRank,
    connect,
    connect_one,
    ordered_sum,
    reduce,
    values_of,
    wait_for,
)
from tests.support.slow_tests import examples

FLOATS_OF_CHUNK = 16


def reduce_later(clients, buffers, **more):
    """Start an AllReduce; return a function that waits for its errors."""
    found = []
    thread = threading.Thread(target=lambda: found.extend(reduce(clients, buffers, **more)))
    thread.start()

    def errors():
        thread.join()
        return found

    return errors


def chunk_of(index):
    return bytes([index % 50]) * FLOATS_OF_CHUNK * 4


def test_rank_that_dies_in_mid_chunk_is_lost_at_once_for_the_others(start):
    switch = start(chunk_bytes=64, window=3, lease_ms=60_000)
    client, rank = connect_one(switch, 0), RawRank(switch, 1)
    (buffer,) = values_of(1, 1000)
    before = buffer.copy()
    errors = reduce_later([client], [buffer])
    rank.begin(1, 1000)
    rank.chunk(1, 0, chunk_of(0))
    rank.socket.sendall(frame(Header(Kind.CHUNK, chunk=1, number=1, epoch=1), chunk_of(1))[:50])
    assert rank.receive()[0].kind == Kind.SUM

    rank.close()
    start_s = time.monotonic()
    (error,) = errors()

    assert time.monotonic() - start_s < 5
    assert isinstance(error, RankLostError) and not error.may_be_complete
    assert "rank 1" in str(error)
    assert (buffer == before).all()
    (error,) = reduce([client], [buffer], number=2)
    assert "rank 1 is not registered" in str(error)


def test_silent_rank_is_lost_after_the_lease_and_its_registration_ends(start):
    switch = start(chunk_bytes=64, window=3, lease_ms=2000)
    client, rank = connect_one(switch, 0), RawRank(switch, 1)
    (buffer,) = values_of(1, 1000)
    before = buffer.copy()
    errors = reduce_later([client], [buffer])
    rank.begin(1, 1000)
    rank.chunk(1, 0, chunk_of(0))

    (error,) = errors()

    assert isinstance(error, RankLostError) and "no progress of rank 1 for 2 s" in str(error)
    assert (buffer == before).all()
    start_s = time.monotonic()
    assert isinstance(reduce([client], [buffer], number=2)[0], RankLostError)
    assert time.monotonic() - start_s < 1.5  # not again the lease
    assert rank.ends()
    replacement = connect_one(switch, 1)
    assert reduce([client, replacement], values_of(2, 99), number=3) == [None, None]


def test_rank_that_never_begins_is_lost_after_the_lease(switch):
    client, silent = connect(switch)
    (error,) = reduce([client], values_of(1, 100))

    assert isinstance(error, RankLostError) and "rank 1" in str(error)
    assert isinstance(reduce([silent], values_of(1, 100))[0], (SwitchLostError, RankLostError))


def test_rank_that_takes_no_sums_frees_the_slot_after_the_lease(start):
    switch = start(lease_ms=600)
    client, rank = connect_one(switch, 0), RawRank(switch, 1, receive_bytes=4096)
    errors = reduce_later([client], values_of(1, 16384 * 15))
    rank.begin(1, 16384 * 15)
    for index in range(15):
        rank.chunk(1, index, bytes(65536))

    assert errors() == [None]
    wait_for(switch, lambda found: found["slots_in_use"] == 0)
    other = connect(switch, "other")
    assert reduce(other, values_of(2, 100)) == [None, None]


def test_refusal_follows_the_sum_that_is_being_sent(start):
    switch = start(lease_ms=5000)
    first, second = RawRank(switch, 0, receive_bytes=4096), RawRank(switch, 1)
    for rank in (first, second):
        rank.begin(1, 16384 * 20)
        for index in range(8):
            rank.chunk(1, index, bytes([index]) * 65536)
    wait_for(switch, lambda found: found["sums"] == 8)
    second.close()
    wait_for(switch, lambda found: found["refusals"]["rank_lost"] == 1)

    kinds = []
    while (frame_ := first.receive())[0].kind == Kind.SUM:
        kinds.append(frame_[0].chunk)
        assert len(frame_[1]) == 65536

    assert kinds == list(range(len(kinds)))
    assert (frame_[0].kind, frame_[0].code) == (Kind.REFUSED, Code.RANK_LOST)


def test_client_continues_after_a_refusal_in_mid_window(start):
    switch = start(lease_ms=5000)
    client, rank = connect_one(switch, 0), RawRank(switch, 1)
    for number in range(1, 8):
        errors = reduce_later([client], values_of(1, 1_000_000), number=number)
        rank.begin(number, 1_000_000)
        rank.chunk(number, 0, bytes(65536))
        while rank.receive()[0].kind != Kind.SUM:
            pass
        rank.send(Header(Kind.CANCEL, number=number, epoch=1))
        assert rank.receive()[0].kind == Kind.REFUSED
        assert isinstance(errors()[0], RankLostError)
    rank.close()
    wait_for(switch, lambda found: found["jobs"][0]["registered"] == 1)
    buffers = values_of(2, 100_000)
    expected = ordered_sum(buffers)

    assert reduce([client, connect_one(switch, 1)], buffers, number=9) == [None, None]
    assert (buffers[0] == expected).all()


def test_switch_killed_in_mid_chunk_and_restarted(start, implementation):
    switch = start(chunk_bytes=4096, window=3, lease_ms=5000)
    clients = connect(switch)
    rank = RawRank(switch, 0, ranks=3, job="other")
    rank.socket.sendall(frame(Header(Kind.CHUNK, number=1, epoch=1), bytes(4096))[:100])
    buffers = values_of(2, 3_000_000)
    before = [buffer.copy() for buffer in buffers]
    errors = reduce_later(clients, buffers)
    wait_for(switch, lambda found: found["sums"] > 5)

    switch.process.kill()
    switch.process.wait()
    found = errors()

    assert [type(error) for error in found] == [SwitchLostError] * 2
    assert not any(error.may_be_complete for error in found)  # 12 MB had not been sent
    assert all((b == old).all() for b, old in zip(buffers, before, strict=True))
    assert all(client.is_closed for client in clients)
    with pytest.raises(SwitchLostError):
        connect(switch)
    options = SwitchOptions(port=switch.port)
    with SwitchProcess(options, implementation=implementation) as again:
        assert reduce(connect(again), buffers, number=2) == [None, None]
        assert (buffers[0] == ordered_sum(before)).all()


def test_time_without_progress_is_bounded_when_the_switch_is_silent(switch):
    clients = connect(switch)
    os.kill(switch.process.pid, signal.SIGSTOP)
    start_s = time.monotonic()
    try:
        errors = reduce(clients, values_of(2, 10_000_000), timeout_s=0.3)
    finally:
        os.kill(switch.process.pid, signal.SIGCONT)

    assert time.monotonic() - start_s < 8
    assert [type(error) for error in errors] == [SwitchLostError] * 2
    assert not any(error.may_be_complete for error in errors)


def test_time_out_of_a_rank_refuses_the_number_for_all(start):
    switch = start(lease_ms=60_000)
    clients = connect(switch)
    (early,) = reduce(clients[:1], values_of(1, 100), timeout_s=0.2)
    (late,) = reduce(clients[1:], values_of(1, 100))

    assert early.code == late.code == Code.CANCELLED
    assert reduce(clients, values_of(2, 100), number=2) == [None, None]


def test_rank_killed_by_a_signal_is_lost(switch):
    client = connect_one(switch, 0)
    child = os.fork()
    if not child:
        try:
            connect_one(switch, 1).all_reduce(values_of(1, 10**7)[0], number=1, epoch=1)
        finally:
            os._exit(0)
    wait_for(switch, lambda found: found["jobs"] and found["jobs"][0]["registered"] == 2)
    (buffer,) = values_of(1, 10**7)
    before = buffer.copy()
    errors = reduce_later([client], [buffer])
    wait_for(switch, lambda found: found["sums"] > 10)

    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert isinstance(errors()[0], RankLostError)
    assert (buffer == before).all()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: switch\r\n\r\n" + b" " * 40,
        bytes(64),
        b"\xff" * 100_000,
        frame(Header(Kind.CHUNK, number=1), bytes(64)),
        frame(Header(Kind.BEGIN, number=1), bytes(8)),
        frame(Header(Kind.HELLO), b"short"),
        frame(Header(Kind.HELLO), b"x" * 300),
        frame(Header(99), b""),
        MAGIC.to_bytes(4, "little") + b"\x07" + bytes(27),
    ],
)
def test_garbage_is_refused_and_harms_no_job(switch, garbage):
    clients = connect(switch)
    rank = RawRank(switch)
    rank.socket.sendall(garbage)
    rank.socket.shutdown(1)

    assert rank.ends()
    assert reduce(clients, values_of(2, 100)) == [None, None]


@pytest.mark.parametrize(
    ("index", "size", "epoch"),
    [(1, 64, 1), (0, 60, 1), (0, 128, 1), (0, 64, 2), (2**32 - 1, 64, 1), (0, 2**20, 1)],
)
def test_chunk_that_is_not_the_announced_one_ends_the_rank(switch, index, size, epoch):
    client, rank = connect_one(switch, 0), RawRank(switch, 1)
    errors = reduce_later([client], values_of(1, 1000))
    rank.begin(1, 1000)
    rank.chunk(1, index, bytes(size), epoch)

    assert isinstance(errors()[0], RankLostError)
    assert rank.ends()


def test_rank_that_exceeds_the_window_is_ended(switch):
    rank, other = RawRank(switch, 0), RawRank(switch, 1)
    other.begin(1, 1000)
    rank.begin(1, 1000)
    for index in range(3):
        rank.chunk(1, index, chunk_of(index))
    rank.chunk(1, 3, chunk_of(3))

    header, reason = rank.receive()
    if header.number == 1:
        header, reason = rank.receive()
    assert header.code == Code.BAD_REQUEST and b"exceeds the window" in reason
    assert other.receive()[0].code == Code.RANK_LOST


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_sequence_of_frames_ends_the_switch(switch, data):
    headers = st.builds(
        Header, kind=st.integers(0, 16), code=st.just(0), size=st.just(0),
        chunk=st.integers(0, 4), number=st.integers(0, 4), epoch=st.integers(0, 3),
    )  # fmt: skip
    payloads = st.one_of(
        st.binary(max_size=80),
        st.just(bytes(64)),
        st.integers(0, 50).map(lambda n: n.to_bytes(8, "little")),
    )
    frames = data.draw(st.lists(st.tuples(headers, payloads), max_size=12))
    ranks = [RawRank(switch, rank, job="fuzzed", epoch=3) for rank in range(2)]
    for header, payload in frames:
        for rank in ranks:
            with suppress(OSError):
                rank.send(header, payload)
    for rank in ranks:
        rank.close()

    assert switch.process.poll() is None
    wait_for(switch, lambda found: not found["jobs"] and not found["slots_in_use"])
