"""Connections: keep-alive, large, slow and incomplete bodies, and shutdown."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from google.protobuf import json_format

from presage.serving.http.connection import HttpLimits
from presage.serving.rest import rest_server
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from tests.serving.rest.http_client import JSON, ask, connect, of_owner, send
from tests.serving.support.processes import serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def raw(server, content=b""):
    """Return an open socket, after sending some bytes."""
    opened = socket.create_connection((server.host, server.http_port), timeout=30)
    opened.sendall(content)
    return opened


def read_status(opened):
    """Return the status of the response on a socket, and its text."""
    with opened.makefile("rb") as file:
        line = file.readline()
        text = file.read().decode()
    return int(line.split()[1]), text


def test_a_connection_is_kept_between_requests_and_after_errors(rest, predict_request):
    body = json_format.MessageToJson(predict_request(1))
    with closing(connect(rest)) as connection:
        asked = [
            send(connection, "POST", "/v1/predict", body),
            send(connection, "POST", "/v1/predict", "{"),
            send(connection, "POST", "/v1/nothing", body),
            send(connection, "POST", "/v1/reload", body),
            send(connection, "POST", "/v1/predict", body, {"Content-Type": "text/plain"}),
            send(connection, "GET", "/v1/health"),
            send(connection, "POST", "/v1/predict", body),
        ]
        assert connection.sock is not None

    assert [answer.status for answer in asked] == [200, 400, 404, 401, 415, 200, 200]
    assert asked[0].json == asked[-1].json


def test_a_large_body_is_rejected_unread(rest):
    body = b'{"jobs":[' + b" " * 4 * 2**20 + b"]}"

    answer = ask(rest, "POST", "/v1/predict", body)

    assert (answer.status, answer.headers["Connection"]) == (413, "close")
    assert "4,194,304 bytes" in answer.json["detail"]


def test_a_body_whose_parsed_form_is_too_large_is_rejected(rest):
    answer = ask(rest, "POST", "/v1/predict", b'{"a":[' + b"{}," * 600_000 + b"{}]}")

    assert (answer.status, answer.json["grpcStatus"]) == (413, "INVALID_ARGUMENT")


def test_a_body_of_almost_the_limit_is_answered(rest, stub, predict_request):
    request = predict_request(4000)
    del request.devices[1:]
    body = json_format.MessageToJson(request, indent=None)
    assert 3.3 * 2**20 < len(body) < 4 * 2**20

    answer = ask(rest, "POST", "/v1/predict", body, headers=of_owner(rest))

    assert answer.message(pb.PredictResponse) == stub.Predict(request, timeout=30)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        (b"Content-Length: -1\r\n", 400),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"X: " + b"a" * 40_000 + b"\r\n", 431),
        (b"X: a\r\n" * 200, 431),
        (b"no field\r\nContent-Length: 2\r\n", 400),
        (b"Content-Length : 2\r\n", 400),
        (b"Transfer-Encoding : chunked\r\n", 400),
        (b"X: a\r Content-Length: 2\r\n", 400),
        (b"X: a\rContent-Length: 2\r\n", 400),
        (b"X: a\r\n Content-Length: 2\r\n", 400),
        (b"X: a\0\r\n", 400),
        (b"From x\r\n", 400),
        (b"Host: localhost\r\n", 400),
    ],
)
def test_a_head_that_is_not_unambiguous_ends_the_connection(rest, headers, status):
    with raw(rest, HEAD + headers + b"\r\n{}") as opened:
        found, text = read_status(opened)

    assert found == status
    assert "application/problem+json" in text
    assert "Connection: close" in text


def test_white_space_around_a_length_is_no_part_of_it(rest):
    head = HEAD + b"Connection: close\r\nContent-Length: \t2 \r\n\r\n{}"
    with raw(rest, head) as opened:
        _, text = read_status(opened)

    assert "jobs has 0 entries" in text


@pytest.mark.parametrize(
    "line",
    [
        b"SECRET /v1/predict HTTP/1.1",
        b"GET /v1/SECRET HTTP/1.1",
        b"GET /v1/predict SECRET HTTP/1.1",
        b"GET /v1/release?SECRET HTTP/1.1",
        b"GET /v1/predict SECRET/1.1",
        b"GET /v1/predict\x1bSECRET HTTP/1.1",
    ],
)
def test_a_rejection_does_not_repeat_the_request_line(rest, line):
    with raw(rest, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n") as opened:
        text = b"".join(iter(lambda: opened.recv(4096), b""))

    assert b"about:blank" in text
    assert b"SECRET" not in text


def test_a_line_that_is_not_http_is_rejected(rest):
    with raw(rest, b"\x16\x03\x01\x02\x00\r\n\r\n") as opened:
        assert b"400" in opened.recv(1000)


def test_continue_is_sent_only_for_a_body_that_is_accepted(rest):
    expects = b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with raw(rest, HEAD + expects) as opened:
        assert opened.recv(1000).startswith(b"HTTP/1.1 100 ")
        opened.sendall(b"{}")
        assert opened.recv(1000).startswith(b"HTTP/1.1 400 ")
    with raw(rest, HEAD.replace(b"predict", b"reload") + expects) as opened:
        assert opened.recv(1000).startswith(b"HTTP/1.1 401 ")
    too_large = expects.replace(b": 2", b": 5000000")
    with raw(rest, HEAD + too_large) as opened:
        assert opened.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_ends_too_early_is_rejected(rest):
    with raw(rest, HEAD + b"Content-Length: 100\r\n\r\n{}") as opened:
        opened.shutdown(socket.SHUT_WR)
        status, text = read_status(opened)

    assert status == 408
    assert "ended before the body was complete" in text


# Slow clients ----------------------------------------------------------------------------------


@pytest.fixture
def impatient(release, monkeypatch):
    """Function that starts a server with other limits on connections."""
    started = []

    def start(**limits):
        monkeypatch.setattr(rest_server, "LIMITS", HttpLimits(**limits))
        started.append(start_server(release, Options(port=0, http_port=0)))
        return started[-1]

    yield start
    for server in started:
        server.stop(0)


def test_a_slow_body_is_ended_and_delays_no_other_request(impatient, predict_request):
    server = impatient(body_s=1.0)
    with raw(server, HEAD + b"Content-Length: 1000\r\n\r\n") as slow:
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            slow.sendall(b" ")
            assert ask(server, "POST", "/v1/predict", predict_request()).status == 200
        status, text = read_status(slow)

    assert status == 408
    assert json.loads(text.partition("\r\n\r\n")[2])["grpcStatus"] == "DEADLINE_EXCEEDED"


def test_the_limit_on_incomplete_requests_ends_a_slow_body(impatient):
    server = impatient(body_s=60.0)
    server._server._calls.unfinished._receive_s = 0.5  # of gRPC and HTTP alike
    with raw(server, HEAD + b"Content-Length: 1000\r\n\r\n") as slow:
        status, text = read_status(slow)

    assert status == 408
    assert "did not arrive completely within 0.5 s" in text


def test_a_head_that_never_ends_and_an_idle_connection_are_closed(impatient):
    server = impatient(head_s=0.5, idle_s=0.5)
    with raw(server) as silent, raw(server, HEAD) as half, closing(connect(server)) as idle:
        assert send(idle, "GET", "/v1/health").status == 200
        assert [opened.recv(1) for opened in (silent, half, idle.sock)] == [b""] * 3


def test_connections_that_wait_for_a_rejection_give_way_to_others(impatient):
    server = impatient(connections=4, per_peer=4)
    guess = b"GET /v1/release HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n"
    guessing = [raw(server, guess) for _ in range(4)]
    try:
        assert [ask(server, "GET", "/v1/health").status for _ in range(8)] == [200] * 8
    finally:
        for opened in guessing:
            opened.close()


def test_a_server_survives_a_flood_of_silent_connections(rest, predict_request):
    flood = [raw(rest, HEAD) for _ in range(150)]
    try:
        answers = [ask(rest, "POST", "/v1/predict", predict_request()) for _ in range(10)]
    finally:
        for opened in flood:
            opened.close()

    assert [answer.status for answer in answers] == [200] * 10
    # And the flood leaves nothing behind.
    wait_until(lambda: len(rest._server._rest.connections) <= 1)


# The end ---------------------------------------------------------------------------------------


def test_a_request_in_flight_is_answered_and_later_ones_are_rejected(
    release, predict_request, monkeypatch
):
    begun, go_on = threading.Event(), threading.Event()
    server = start_server(release, Options(port=0, http_port=0))
    compute = server._server._prediction._served.predictor.solo_quantiles

    def wait(features):
        begun.set()
        assert go_on.wait(20)
        return compute(features)

    monkeypatch.setattr(server._server._prediction._served.predictor, "solo_quantiles", wait)
    with ThreadPoolExecutor() as pool, closing(connect(server)) as kept:
        assert send(kept, "GET", "/v1/health").status == 200
        asked = pool.submit(ask, server, "POST", "/v1/predict", predict_request(200))
        assert begun.wait(20)
        stopping = pool.submit(server.stop)
        wait_until(lambda: server._server._calls.is_closing)
        late = send(kept, "GET", "/v1/release")
        assert ask(server, "GET", "/v1/health").json == {"status": "NOT_SERVING"}
        go_on.set()
        answer = asked.result(20)
        stopping.result(20)

    assert (late.status, late.headers["Retry-After"]) == (503, "1")
    assert late.headers["Connection"] == "close"
    assert answer.status == 200
    assert len(answer.json["forecasts"]) == 400
    with pytest.raises(ConnectionRefusedError):
        raw(server)


def test_a_body_that_is_arriving_is_answered_at_the_end(release, predict_request, monkeypatch):
    server = start_server(release, Options(port=0, http_port=0))
    body = json_format.MessageToJson(predict_request()).encode()
    with ThreadPoolExecutor() as pool:
        with raw(server, HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode()) as opened:
            wait_until(lambda: len(server._server._calls.unfinished))
            rest: Any = server._server._rest
            begun, stop = threading.Event(), rest.stop

            def note_stop(grace_s):
                begun.set()
                stop(grace_s)

            monkeypatch.setattr(rest, "stop", note_stop)
            stopping = pool.submit(server.stop)
            assert begun.wait(20)
            opened.sendall(body)
            status, _ = read_status(opened)
        stopping.result(20)

    assert status == 200


def test_idle_connections_do_not_delay_the_end(release):
    server = start_server(release, Options(port=0, http_port=0))
    with closing(connect(server)) as idle, raw(server), raw(server, HEAD):
        assert send(idle, "GET", "/v1/health").status == 200
        begin_s = time.monotonic()
        server.stop()
        assert time.monotonic() - begin_s < 5


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_drains_every_request_in_flight(release, predict_request, tmp_path, workers):
    options = ("--release", release.folder, "--no-outcomes", "--drain-s", 0.3, "--http-port", 0)
    body = json_format.MessageToJson(predict_request(50))
    answers = []

    def ask_until_rejected(server):
        while True:
            try:
                answers.append(ask(server, "POST", "/v1/predict", body, headers=JSON).status)
            except ConnectionRefusedError:
                return
            if answers[-1] != 200:
                return

    with (
        serving(*options, "--workers", workers, cwd=tmp_path) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        asking = [pool.submit(ask_until_rejected, server) for _ in range(4)]
        wait_until(lambda: len(answers) > 20)
        server.process.send_signal(signal.SIGTERM)
        before = len(answers)
        assert server.process.wait(30) == 0
        for future in asking:
            future.result(20)  # no connection was reset

    assert len(answers) > before
    assert set(answers) <= {200, 503}
