"""Who may do what at the extender: anonymous callers, tokens and client certificates."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from presage.errors import ServiceError
from presage.schedulers.kubernetes.extender.extender_http import BodyLimits
from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer
from presage.serving.authentication.token_file import TokenFile
from presage.serving.http.connection import HttpLimits
from presage.serving.server_options import Tls
from tests.schedulers.kubernetes.extender.test_extender_server import (
    NODES,
    POD,
    VICTIMS,
    Hold,
    ask,
    certificates,
    closed,
    connect,
    extender,
    server,
    token,
    token_file,
    trust,
    verbs,
)
from tests.schedulers.kubernetes.kube_scheduler.extender import Extender, ExtenderError
from tests.support.http_attacks import idle_connections

__all__ = ["certificates", "closed", "server", "token", "token_file", "verbs"]  # fixtures

BINDING = json.dumps({"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "n1"}).encode()


def test_without_credentials_pods_are_filtered_and_never_bound(server, verbs):
    asks = extender(server)

    assert asks.filter(POD, NODES).nodes == NODES[1:]
    for attempt in (lambda: asks.bind(POD, "n1"), lambda: asks.preempt(POD, VICTIMS)):
        with pytest.raises(ExtenderError, match=r"401 .*--client-ca or --tokens"):
            attempt()
    assert len(verbs.asked) == 1


@pytest.mark.parametrize("tls", [False, True])
def test_without_credentials_it_listens_on_loopback_alone(verbs, certificates, tls):
    with pytest.raises(ServiceError, match=r"--client-ca .* or --tokens"):
        ExtenderServer(
            verbs, host="0.0.0.0", port=0, allow_remote=True,
            tls=Tls(*certificates["server"]) if tls else None,
        )  # fmt: skip


def test_with_credentials_it_listens_beyond_loopback(verbs, token_file):
    with ExtenderServer(
        verbs, host="0.0.0.0", port=0, allow_remote=True, tokens=TokenFile(token_file)
    ) as server:
        assert ask(server, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_a_token_with_the_role_binds_however_it_is_sent(closed, token, scheme):
    sent = base64.b64encode(f"presage:{token}".encode()).decode() if scheme == "Basic" else token
    status, text, _ = ask(closed, "POST", "/bind", BINDING, Authorization=f"{scheme} {sent}")
    assert (status, json.loads(text)) == (200, {"Error": ""})


def test_a_token_without_the_role_reads_and_does_not_bind(closed, token_file, verbs):
    reader = (token_file.parent / "reader.token").read_text()
    asks = extender(closed, token=reader)

    assert asks.filter(POD, NODES).nodes == NODES[1:]
    with pytest.raises(ExtenderError, match=r"403 .*lacks the role 'bind'"):
        asks.bind(POD, "n1")
    assert len(verbs.asked) == 1


@pytest.mark.parametrize(
    "sent", ["", "Bearer ", "Bearer wrong", "Basic wrong", "Basic cHJlc2FnZQ==", "Digest a"]
)
@pytest.mark.parametrize("path", ["/bind", "/filter", "/nothing"])
def test_with_tokens_nothing_but_health_is_said_to_others(closed, verbs, path, sent):
    status, text, answer = ask(closed, "POST", path, BINDING, Authorization=sent)

    assert status == 401
    assert "Bearer" in (answer.getheader("WWW-Authenticate") or "")
    assert "wrong" not in text
    assert verbs.asked == []
    assert ask(closed, "GET", "/healthz")[:2] == (200, "ok")


def test_a_body_is_not_read_before_its_sender_is_known(closed):
    where = urlsplit(closed.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as client:
        client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_waits_to_send_its_body_is_told_to_only_once_it_is_known(closed, token):
    where = urlsplit(closed.url)
    head = f"POST /bind HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(BINDING)}\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=10) as client:
        client.sendall(f"{head}Authorization: Bearer wrong\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 401 ")
    with socket.create_connection((where.hostname, where.port), timeout=10) as client:
        client.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(BINDING)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_failed_logins_are_counted_logged_and_slowed_and_the_right_token_is_not(
    closed, token, caplog
):
    with caplog.at_level(logging.WARNING):
        for _ in range(5):  # answered after 0.1, 0.2, 0.4, 0.8 and 1.6 s
            began_s = time.monotonic()
            assert ask(closed, "POST", "/bind", BINDING, Authorization="Bearer wrong")[0] == 401
    assert time.monotonic() - began_s > 1.4  # the fifth
    records = [one for one in caplog.records if one.getMessage() == "authentication failed"]
    assert [one.fields["failures"] for one in records] == [1, 4]  # at most a line a second
    assert records[0].fields["client"] == "127.0.0.1"
    began_s = time.monotonic()
    status = json.loads(ask(closed, "GET", "/status", Authorization=f"Bearer {token}")[1])
    assert status["failed_logins"] == 5
    assert time.monotonic() - began_s < 0.7


def test_who_binds_is_logged(closed, token, caplog):
    with caplog.at_level(logging.INFO):
        extender(closed, token=token).bind(POD, "n1")
    (record,) = [one for one in caplog.records if one.getMessage() == "request"]
    assert record.fields == {"path": "/bind", "caller": "kube-scheduler", "peer": "127.0.0.1"}
    assert token not in caplog.text


def test_a_client_certificate_may_bind_and_is_named_in_the_log(verbs, certificates, caplog):
    tls = replace(Tls(*certificates["server"]), client_ca=certificates["ours"][0])
    with (
        caplog.at_level(logging.INFO),
        ExtenderServer(verbs, port=0, tls=tls) as server,
    ):
        mine = trust(certificates, "scheduler")
        assert ask(server, "POST", "/bind", BINDING, tls=mine)[0] == 200
        shown, shown_key = map(str, certificates["scheduler"])
        files = {"certFile": shown, "keyFile": shown_key, "caFile": str(certificates["ours"][0])}
        asks = Extender(
            {"urlPrefix": server.url, "bindVerb": "bind", "enableHTTPS": True, "tlsConfig": files}
        )
        asks.bind(POD, "n1")
        others = dict(zip(("certFile", "keyFile"), map(str, certificates["stranger"]), strict=True))
        nobody = Extender(
            {"urlPrefix": server.url, "bindVerb": "bind", "tlsConfig": {**files, **others}}
        )
        with pytest.raises(ExtenderError):
            nobody.bind(POD, "n1")
    callers = [one.fields["caller"] for one in caplog.records if one.getMessage() == "request"]
    assert callers == ["kube-scheduler"] * 2


def test_with_both_a_certificate_and_a_token_are_needed(verbs, certificates, token_file, token):
    tls = replace(Tls(*certificates["server"]), client_ca=certificates["ours"][0])
    with ExtenderServer(verbs, port=0, tls=tls, tokens=TokenFile(token_file)) as server:
        mine = trust(certificates, "scheduler")
        assert ask(server, "POST", "/bind", BINDING, tls=mine)[0] == 401
        sent = {"Authorization": f"Bearer {token}"}
        assert ask(server, "POST", "/bind", BINDING, tls=mine, **sent)[0] == 200


def test_tls_alone_lets_nobody_bind(verbs, certificates):
    tls = Tls(*certificates["server"])
    with ExtenderServer(verbs, port=0, tls=tls) as server:
        assert ask(server, "POST", "/bind", BINDING, tls=trust(certificates))[0] == 401


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", 413),
    ],
)
def test_heads_that_are_too_large_or_ambiguous_are_refused(server, sent, status):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as client:
        client.sendall(sent)
        assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_body_that_is_slow_is_ended(verbs):
    with ExtenderServer(verbs, port=0, limits=HttpLimits(body_s=0.5)) as server:
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port), timeout=10) as client:
            client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
            began_s = time.monotonic()
            with pytest.raises(OSError):
                for _ in range(300):
                    client.sendall(b" ")
                    time.sleep(0.05)
            assert time.monotonic() - began_s < 10


def test_when_memory_is_exhausted_by_requests_that_are_worked_on_it_says_to_ask_again(verbs):
    verbs.before = hold = Hold()
    body = json.dumps({"Pod": {**POD, "x": "x" * 600_000}, "NodeNames": ["n1"]}).encode()
    with (
        ThreadPoolExecutor(1) as pool,
        ExtenderServer(verbs, port=0, body_limits=BodyLimits(anonymous_memory_mib=2)) as server,
    ):
        first = pool.submit(ask, server, "POST", "/filter", body)
        assert hold.asked.wait(10)
        status, text, answer = ask(server, "POST", "/filter", body)
        assert (status, answer.getheader("Retry-After")) == (503, "1")
        assert "retry" in text
        hold.go_on.set()
        assert first.result()[0] == 200
        assert ask(server, "POST", "/filter", body)[0] == 200


def test_a_kept_connection_of_a_known_caller_outlives_a_flood_of_others(closed, token):
    with closing(connect(closed)) as connection:
        sent = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/status", headers=sent)
        connection.getresponse().read()
        before = connection.sock
        with idle_connections(closed.url, 300):
            connection.request("POST", "/bind", BINDING, sent)
            assert connection.getresponse().status == 200
            assert connection.sock is before
