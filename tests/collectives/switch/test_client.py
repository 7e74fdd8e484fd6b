"""Client: what it promises whatever the switch does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from presage.collectives.switch import exchange
from presage.collectives.switch.client import SwitchClient
from presage.collectives.switch.errors import ClientClosedError, SwitchLostError
from presage.collectives.switch.frame_stream import FrameStream
from presage.collectives.switch.protocol import (
    HEADER_BYTES,
    NO_NUMBER,
    WELCOME,
    Header,
    Kind,
    frame,
    unpack,
)
from tests.collectives.switch.ranks import connect, connect_one, reduce, values_of, wait_for

CHUNK = 4096


class FakeSwitch:
    """Switch that welcomes one rank, and then does what a test wants."""

    _thread: threading.Thread

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._server.getsockname()

    def run(self, serve):
        """Call ``serve`` with the connection of the rank, in a thread."""

        def run():
            connection, _ = self._server.accept()
            with connection:
                receive(connection)
                welcome = WELCOME.pack(CHUNK, 4, 1, 1, 99)
                connection.sendall(frame(Header(Kind.WELCOME), welcome))
                with suppress(OSError):  # the client may close first
                    serve(connection)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def close(self):
        self._thread.join()
        self._server.close()


@pytest.fixture
def fake():
    made = FakeSwitch()
    yield made
    made.close()


def receive(connection):
    header = unpack(connection.recv(HEADER_BYTES, socket.MSG_WAITALL))
    payload = connection.recv(header.size, socket.MSG_WAITALL) if header.size else b""
    return header, payload


def receive_chunks(connection, count):
    assert receive(connection)[0].kind == Kind.BEGIN
    return [receive(connection) for _ in range(count)]


def send_sum(connection, header, payload):
    connection.sendall(frame(header._replace(kind=Kind.SUM), payload))


def client_of(switch, **more):
    return SwitchClient(
        switch.host, switch.port, job="job", rank=0, ranks=1, epoch=1, token="t", **more
    )


def error_of(client, values, **more):
    buffer = np.ones(values, np.float32)
    (error,) = reduce([client], [buffer], **more)
    assert (buffer == 1).all()
    return error


def test_switch_that_ends_before_all_chunks_are_sent_cannot_have_completed(fake):
    fake.run(lambda connection: receive_chunks(connection, 4))

    error = error_of(client_of(fake), 100_000)

    assert isinstance(error, SwitchLostError) and not error.may_be_complete


def test_switch_that_ends_after_all_chunks_were_sent_may_have_completed(fake):
    def serve(connection):
        for header, payload in receive_chunks(connection, 4)[:3]:
            send_sum(connection, header, payload)

    fake.run(serve)

    error = error_of(client_of(fake), 4 * CHUNK // 4)

    assert isinstance(error, SwitchLostError) and error.may_be_complete


def test_silence_after_all_chunks_ends_in_bounded_time_and_may_be_complete(fake):
    done = threading.Event()
    fake.run(lambda connection: (receive_chunks(connection, 2), done.wait(10)))
    start_s = time.monotonic()

    error = error_of(client_of(fake), 2 * CHUNK // 4, timeout_s=0.2)

    done.set()
    assert time.monotonic() - start_s < 5
    assert isinstance(error, SwitchLostError) and error.may_be_complete
    assert "no progress" in str(error)


def test_a_long_time_out_does_not_lengthen_the_wait_for_a_decision(fake, monkeypatch):
    monkeypatch.setattr(exchange, "VERDICT_S", 0.1)
    done = threading.Event()
    fake.run(lambda connection: (receive_chunks(connection, 2), done.wait(10)))
    start_s = time.monotonic()

    error = error_of(client_of(fake), 2 * CHUNK // 4, timeout_s=1.5)

    done.set()
    assert 1.5 < time.monotonic() - start_s < 2.4
    assert "no progress at the switch for 1.5 s" in str(error)


def test_sums_that_come_after_the_time_out_count(fake):
    def serve(connection):
        chunks = receive_chunks(connection, 2)
        assert receive(connection)[0].kind == Kind.CANCEL  # too late: both chunks are there
        for header, payload in chunks:
            send_sum(connection, header, payload)

    fake.run(serve)
    buffer = np.arange(2 * CHUNK // 4, dtype=np.float32)

    client_of(fake).all_reduce(buffer, number=1, epoch=1, timeout_s=0.3)

    assert (buffer == np.arange(2 * CHUNK // 4)).all()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 99,
        frame(Header(Kind.SUM, chunk=1, number=1), bytes(CHUNK)),
        frame(Header(Kind.SUM, chunk=0, number=1), bytes(CHUNK - 4)),
        frame(Header(Kind.SUM, chunk=0, number=2), bytes(1 << 20)),
        frame(Header(Kind.REFUSED, 11, number=NO_NUMBER), b"the rank registered again"),
    ],
)
def test_wrong_answer_of_a_switch_leaves_the_buffer(fake, answer):
    fake.run(lambda connection: (receive_chunks(connection, 2), connection.sendall(answer)))

    client = client_of(fake)

    assert isinstance(error_of(client, 2 * CHUNK // 4, timeout_s=0.5), SwitchLostError)
    assert client.is_closed


def test_server_of_another_protocol_is_no_switch():
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0" * 20))
        thread.start()
        with pytest.raises(SwitchLostError, match="not a frame"):
            SwitchClient(host, port, job="job", rank=0, ranks=1, epoch=1, token="t")
        thread.join()


def test_silent_server_and_unused_port_are_lost_in_bounded_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        with pytest.raises(SwitchLostError, match=r"did not answer within 0\.2 s"):
            SwitchClient(host, port, job="j", rank=0, ranks=1, epoch=1, token="t", timeout_s=0.2)
    with pytest.raises(SwitchLostError, match="cannot be reached"):
        SwitchClient(host, port, job="j", rank=0, ranks=1, epoch=1, token="t")


def test_client_can_be_closed_by_another_thread(switch):
    client, _other = connect(switch)
    timer = threading.Timer(0.2, client.close)
    timer.start()
    start_s = time.monotonic()

    error = error_of(client, 100_000, timeout_s=30)

    timer.join()
    assert time.monotonic() - start_s < 5
    assert isinstance(error, ClientClosedError) and not error.may_be_complete
    assert isinstance(error_of(client, 5, number=2), ClientClosedError)


def test_all_reduce_during_the_close_of_another_thread_is_an_error_of_the_switch(
    switch, monkeypatch
):
    client = connect_one(switch, 0, ranks=1)
    close_stream, is_closing, may_end = FrameStream.close, threading.Event(), threading.Event()

    def close_slowly(stream):
        is_closing.set()
        may_end.wait(5)
        close_stream(stream)

    monkeypatch.setattr(FrameStream, "close", close_slowly)
    closing = threading.Thread(target=client.close)
    closing.start()
    assert is_closing.wait(60)

    with pytest.raises(ClientClosedError):
        client.all_reduce(np.ones(4, np.float32), number=0, epoch=1)
    may_end.set()
    closing.join()


def test_start_runs_in_a_thread_and_reports_through_a_future(switch):
    with connect_one(switch, 0) as first, connect_one(switch, 1) as second:
        buffers = values_of(2, 300)
        expected = buffers[0] + buffers[1]

        waiting = first.start(buffers[0], number=1, epoch=1)
        assert not waiting.done()
        second.start(buffers[1], number=1, epoch=1).result(10)

        assert waiting.result(10) is None
        assert (buffers[0] == expected).all()


def test_last_sum_is_kept_until_the_next_completes(switch):
    clients = connect(switch)
    assert clients[0].completed is None
    for number, size in ((2, 100), (4, 50), (6, 500), (8, 500)):
        buffers = values_of(2, size, seed=number)
        expected = buffers[0] + buffers[1]
        assert reduce(clients, buffers, number=number) == [None, None]
        buffers[0][:] = 0  # the caller goes on with its buffer
        reduce(clients, [np.ones(400, np.float32), np.ones(11, np.float32)], number=number + 1)
        for client in clients:
            assert client.completed.number == number
            assert (client.completed.sum == expected).all()


@pytest.mark.parametrize(
    "buffer",
    [
        np.ones(4, np.float64),
        np.ones(4, np.int32),
        np.ones((4, 4), np.float32)[:, ::2],
        np.ones(4, ">f4"),
    ],
)
def test_other_buffers_are_invalid(switch, buffer):
    client = connect_one(switch, 0, 1)
    with pytest.raises(ValueError, match="float32"):
        client.all_reduce(buffer, number=1, epoch=1)
    read_only = np.ones(4, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        client.all_reduce(read_only, number=1, epoch=1)


@pytest.mark.parametrize(("number", "epoch"), [(-1, 1), (2**63, 1), (1, -1), (1, 2**63)])
def test_numbers_and_epochs_out_of_range_are_invalid(switch, number, epoch):
    with pytest.raises(ValueError, match="out of range"):
        connect_one(switch, 0, 1).all_reduce(np.ones(4, np.float32), number=number, epoch=epoch)


def test_second_all_reduce_at_a_time_is_invalid(switch):
    first, second = connect(switch)
    waiting = first.start(np.ones(5, np.float32), number=1, epoch=1)
    wait_for(switch, lambda found: found["slots_in_use"] == 1)

    with pytest.raises(ValueError, match="under way"):
        first.all_reduce(np.ones(5, np.float32), number=2, epoch=1)

    second.all_reduce(np.ones(5, np.float32), number=1, epoch=1)
    waiting.result(10)
