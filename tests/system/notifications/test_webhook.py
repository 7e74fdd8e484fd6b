"""Events over HTTP: format, signature, repetitions, and receivers that misbehave."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta

import pytest

from presage.errors import ConfigError
from presage.system.notifications import webhook as module
from presage.system.notifications.cloud_event import NODE_FAILED, CloudEvent
from presage.system.notifications.event_sender import (
    DELIVERED,
    DROPPED,
    FAILED,
    EventSender,
    send_from_command,
)
from presage.system.notifications.webhook import SIGNATURE_HEADER, configured_webhook, sign
from tests.serving.support.processes import free_port
from tests.support.waiting import wait_until
from tests.system.notifications.receiver import receiver

EVENT = CloudEvent(NODE_FAILED, "/presage/clusters/c", "n0", {"node": "n0", "jobs": ["ä"]})


@pytest.fixture
def server():
    with receiver() as started:
        yield started


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def webhook(url: str, secret: str = ""):
    found = configured_webhook({"PRESAGE_WEBHOOK": url, "PRESAGE_WEBHOOK_SECRET_FILE": secret})
    assert found is not None
    return found


PAUSES_S = (0.01, 0.01)


def test_an_event_is_a_cloud_event(server):
    assert webhook(server.url + "hook?key=1").deliver(EVENT) == ""

    ((headers, body),) = server.requests
    event = json.loads(body)
    assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert SIGNATURE_HEADER not in headers
    assert datetime.fromisoformat(event.pop("time")).utcoffset() == timedelta(0)
    assert re.fullmatch("[0-9a-f]{32}", event.pop("id"))
    assert event == {
        "specversion": "1.0", "source": "/presage/clusters/c", "type": "presage.node.failed",
        "subject": "n0", "datacontenttype": "application/json",
        "data": {"node": "n0", "jobs": ["ä"]},
    }  # fmt: skip


def test_openssl_verifies_the_signature(server, tmp_path):
    (tmp_path / "secret").write_text("it is a secret\n")
    assert webhook(server.url, str(tmp_path / "secret")).deliver(EVENT) == ""

    ((headers, body),) = server.requests
    assert headers[SIGNATURE_HEADER] == sign(b"it is a secret", body)
    command = ["openssl", "dgst", "-sha256", "-hmac", "it is a secret", "-r"]
    printed = subprocess.run(command, input=body, capture_output=True, check=True).stdout
    assert headers[SIGNATURE_HEADER] == f"sha256={printed.split()[0].decode()}"


def test_a_password_of_the_url_becomes_a_header_and_is_not_shown(server):
    found = webhook(server.url.replace("//", "//us%40er:p%3Ass@") + "token-in-path")
    assert found.deliver(EVENT) == ""
    pair = base64.b64encode(b"us@er:p:ss").decode()
    assert server.requests[0][0]["Authorization"] == f"Basic {pair}"
    assert "ss" not in repr(found).replace("class", "")
    assert "token" not in repr(found)


@pytest.mark.parametrize("statuses", [[500], [503, 429], [408]])
def test_a_request_is_repeated_with_the_same_id(server, statuses):
    server.statuses = [*statuses]
    assert webhook(server.url).deliver(EVENT, PAUSES_S) == ""
    assert len(server.requests) == len(statuses) + 1
    assert len(server.events) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 410])
def test_a_redirect_or_a_rejection_is_final(server, status):
    server.statuses = [status]
    assert webhook(server.url).deliver(EVENT, PAUSES_S) == f"HTTP status {status}"
    assert len(server.requests) == 1


def test_a_lasting_error_is_reported_after_the_repetitions(server):
    server.statuses = [500] * 9
    assert webhook(server.url).deliver(EVENT, PAUSES_S) == "HTTP status 500"
    assert len(server.requests) == 3


def test_a_receiver_that_is_not_there_or_hangs_is_a_problem(server):
    problem = webhook(f"http://127.0.0.1:{free_port()}").deliver(EVENT, PAUSES_S)
    assert problem == "ConnectionRefusedError: Connection refused"

    released = threading.Event()
    server.before_answer = lambda: released.wait(20)
    assert "timed out" in webhook(server.url).deliver(EVENT, ())
    released.set()


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_a_receiver_that_is_no_http_server_is_a_problem(answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        assert webhook(f"http://127.0.0.1:{port}/").deliver(EVENT, ()) != ""
        thread.join()


def test_a_warning_contains_no_escape_sequence_of_the_receiver(capsys, monkeypatch):
    problem = "BadStatusLine: \x1b[2J\nerror: another line"
    monkeypatch.setattr(module.Webhook, "deliver", lambda *_: problem)
    assert not send_from_command(webhook("http://host"), EVENT)
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://u:hunter2@host", "hunter2", "http://", "https:///hunter2", "file:///etc/hunter2",
        "http://host:99999/hunter2", "http://host:0/", "http://ho st/hunter2", "http://[::1/hunter2",
        "http://host/hunter2\r\nX: 1", "http://höst/hunter2",
    ],
)  # fmt: skip
def test_an_invalid_url_is_an_error_of_one_line_without_the_url(url):
    with pytest.raises(
        ConfigError, match=r"^PRESAGE_WEBHOOK is no http:// or https:// URL"
    ) as found:
        webhook(url)
    assert "hunter2" not in str(found.value)
    assert "\n" not in str(found.value)


def test_an_unreadable_or_empty_secret_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^PRESAGE_WEBHOOK_SECRET_FILE: .*No such file"):
        webhook("http://host", str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="must contain 1 to 4096 bytes"):
        webhook("http://host", str(tmp_path / "empty"))


def test_there_is_no_webhook_without_the_variable():
    assert configured_webhook({}) is None
    assert configured_webhook({"PRESAGE_WEBHOOK": ""}) is None


# The queue -------------------------------------------------------------------------------------


def test_events_above_the_limit_are_dropped_and_counted_without_waiting(server):
    released, results = threading.Event(), []
    server.before_answer = lambda: released.wait(20)
    sender = EventSender(
        webhook(server.url), lambda *result: results.append(result), max_queued=3, pauses_s=()
    )
    events = [CloudEvent(NODE_FAILED, "/s", f"n{i}", {}) for i in range(10)]
    begin_s = time.monotonic()
    for event in events:
        sender.put(event)
    assert time.monotonic() - begin_s < 1
    released.set()

    assert sender.flush(10)
    outcomes = [result for result, _, _ in results]
    assert outcomes.count(DROPPED) >= 6  # one may be with the thread already
    assert len(outcomes) == 10
    assert results[0][0] == DROPPED
    assert results[0][2] == "3 events are waiting"
    kept = [event.subject for result, event, _ in results if result != DROPPED]
    assert [event["subject"] for event in server.events] == kept


def test_a_defect_does_not_end_the_thread(server):
    results = []
    sender = EventSender(webhook(server.url), lambda *result: results.append(result))
    sender.put(CloudEvent(NODE_FAILED, "/s", "n0", {"not JSON": object()}))
    sender.put(EVENT)
    assert sender.flush(10)
    assert [result for result, _, _ in results] == [FAILED, DELIVERED]
    assert server.types == [NODE_FAILED]


def test_a_command_warns_in_one_line_and_does_not_wait_for_long(server, capsys, monkeypatch):
    assert send_from_command(None, EVENT)
    assert send_from_command(webhook(server.url), EVENT)
    assert capsys.readouterr().err == ""

    server.statuses = [404]
    assert not send_from_command(webhook(server.url + "secret-path"), EVENT)
    origin = server.url.rstrip("/")
    assert capsys.readouterr().err == (
        f"warning: event presage.node.failed was not delivered to {origin} (HTTP status 404)\n"
    )

    monkeypatch.setattr("presage.system.notifications.event_sender.COMMAND_S", 0.2)
    released = threading.Event()
    server.before_answer = lambda: released.wait(20)
    begin_s = time.monotonic()
    assert not send_from_command(webhook(server.url), EVENT)
    assert time.monotonic() - begin_s < 3
    released.set()
    assert "no answer within 0.2 s" in capsys.readouterr().err


def test_the_example_receiver_accepts_signed_events_once_and_rejects_others(tmp_path):
    (tmp_path / "key").write_text("key\n")
    (tmp_path / "another").write_text("another\n")
    port = free_port()
    command = [sys.executable, "examples/webhook_receiver.py", str(tmp_path / "key"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}/"
            signed = webhook(url, str(tmp_path / "key"))
            wait_until(lambda: signed.deliver(EVENT, ()) == "")
            assert signed.deliver(EVENT, ()) == ""
            assert webhook(url).deliver(EVENT, ()) == "HTTP status 401"
            assert webhook(url, str(tmp_path / "another")).deliver(EVENT, ()) == "HTTP status 401"
        finally:
            process.terminate()
        assert process.stdout is not None
        (line,) = process.stdout.read().decode().splitlines()
    assert line.startswith(f"{EVENT.time} presage.node.failed n0 ")
