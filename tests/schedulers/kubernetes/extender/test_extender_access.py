"""Authentication and authorization of the extender: tokens, certificates, anonymous callers."""

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
    BlockedCall,
    certificates,
    connect,
    extender,
    send,
    server,
    token,
    token_file,
    token_server,
    trust,
    verbs,
)
from tests.schedulers.kubernetes.kube_scheduler.extender import Extender, ExtenderError
from tests.support.http_attacks import idle_connections

__all__ = ["certificates", "server", "token", "token_file", "token_server", "verbs"]  # fixtures

BINDING = json.dumps({"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "n1"}).encode()


def test_anonymous_callers_can_filter_but_not_bind(server, verbs):
    client = extender(server)

    assert client.filter(POD, NODES).nodes == NODES[1:]
    for attempt in (lambda: client.bind(POD, "n1"), lambda: client.preempt(POD, VICTIMS)):
        with pytest.raises(ExtenderError, match=r"401 .*--client-ca or --tokens"):
            attempt()
    assert len(verbs.calls) == 1


@pytest.mark.parametrize("tls", [False, True])
def test_without_authentication_only_loopback_is_allowed(verbs, certificates, tls):
    with pytest.raises(ServiceError, match=r"--client-ca .* or --tokens"):
        ExtenderServer(
            verbs, host="0.0.0.0", port=0, allow_remote=True,
            tls=Tls(*certificates["server"]) if tls else None,
        )  # fmt: skip


def test_with_authentication_any_address_is_allowed(verbs, token_file):
    with ExtenderServer(
        verbs, host="0.0.0.0", port=0, allow_remote=True, tokens=TokenFile(token_file)
    ) as server:
        assert send(server, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_a_token_with_the_role_binds_with_any_scheme(token_server, token, scheme):
    authorization = (
        base64.b64encode(f"presage:{token}".encode()).decode() if scheme == "Basic" else token
    )
    status, text, _ = send(
        token_server, "POST", "/bind", BINDING, Authorization=f"{scheme} {authorization}"
    )
    assert (status, json.loads(text)) == (200, {"Error": ""})


def test_a_token_without_the_role_cannot_bind(token_server, token_file, verbs):
    reader = (token_file.parent / "reader.token").read_text()
    client = extender(token_server, token=reader)

    assert client.filter(POD, NODES).nodes == NODES[1:]
    with pytest.raises(ExtenderError, match=r"403 .*lacks the role 'bind'"):
        client.bind(POD, "n1")
    assert len(verbs.calls) == 1


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer ", "Bearer wrong", "Basic wrong", "Basic cHJlc2FnZQ==", "Digest a"],
)
@pytest.mark.parametrize("path", ["/bind", "/filter", "/nothing"])
def test_without_a_valid_token_only_healthz_responds(token_server, verbs, path, authorization):
    status, text, response = send(token_server, "POST", path, BINDING, Authorization=authorization)

    assert status == 401
    assert "Bearer" in (response.getheader("WWW-Authenticate") or "")
    assert "wrong" not in text
    assert verbs.calls == []
    assert send(token_server, "GET", "/healthz")[:2] == (200, "ok")


def test_a_body_is_not_read_before_authentication(token_server):
    address = urlsplit(token_server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 401 ")


def test_100_continue_is_sent_only_after_authentication(token_server, token):
    address = urlsplit(token_server.url)
    head = f"POST /bind HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(BINDING)}\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(f"{head}Authorization: Bearer wrong\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 401 ")
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(BINDING)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_failed_logins_are_counted_logged_and_delayed_and_valid_tokens_are_not(
    token_server, token, caplog
):
    with caplog.at_level(logging.WARNING):
        for _ in range(5):  # answered after 0.1, 0.2, 0.4, 0.8 and 1.6 s
            began_s = time.monotonic()
            assert (
                send(token_server, "POST", "/bind", BINDING, Authorization="Bearer wrong")[0] == 401
            )
    assert time.monotonic() - began_s > 1.4  # the fifth
    records = [one for one in caplog.records if one.getMessage() == "authentication failed"]
    assert [one.fields["failures"] for one in records] == [1, 4]  # at most a line a second
    assert records[0].fields["client"] == "127.0.0.1"
    began_s = time.monotonic()
    status = json.loads(send(token_server, "GET", "/status", Authorization=f"Bearer {token}")[1])
    assert status["failed_logins"] == 5
    assert time.monotonic() - began_s < 0.7


def test_callers_of_bind_are_logged(token_server, token, caplog):
    with caplog.at_level(logging.INFO):
        extender(token_server, token=token).bind(POD, "n1")
    (record,) = [one for one in caplog.records if one.getMessage() == "request"]
    assert record.fields == {"path": "/bind", "caller": "kube-scheduler", "peer": "127.0.0.1"}
    assert token not in caplog.text


def test_a_client_certificate_can_bind_and_is_named_in_the_log(verbs, certificates, caplog):
    tls = replace(Tls(*certificates["server"]), client_ca=certificates["ours"][0])
    with (
        caplog.at_level(logging.INFO),
        ExtenderServer(verbs, port=0, tls=tls) as server,
    ):
        context = trust(certificates, "scheduler")
        assert send(server, "POST", "/bind", BINDING, tls=context)[0] == 200
        certificate, key = map(str, certificates["scheduler"])
        files = {"certFile": certificate, "keyFile": key, "caFile": str(certificates["ours"][0])}
        client = Extender(
            {"urlPrefix": server.url, "bindVerb": "bind", "enableHTTPS": True, "tlsConfig": files}
        )
        client.bind(POD, "n1")
        others = dict(zip(("certFile", "keyFile"), map(str, certificates["stranger"]), strict=True))
        stranger = Extender(
            {"urlPrefix": server.url, "bindVerb": "bind", "tlsConfig": {**files, **others}}
        )
        with pytest.raises(ExtenderError):
            stranger.bind(POD, "n1")
    callers = [one.fields["caller"] for one in caplog.records if one.getMessage() == "request"]
    assert callers == ["kube-scheduler"] * 2


def test_with_both_methods_certificate_and_token_are_required(
    verbs, certificates, token_file, token
):
    tls = replace(Tls(*certificates["server"]), client_ca=certificates["ours"][0])
    with ExtenderServer(verbs, port=0, tls=tls, tokens=TokenFile(token_file)) as server:
        context = trust(certificates, "scheduler")
        assert send(server, "POST", "/bind", BINDING, tls=context)[0] == 401
        authorization = {"Authorization": f"Bearer {token}"}
        assert send(server, "POST", "/bind", BINDING, tls=context, **authorization)[0] == 200


def test_tls_alone_does_not_permit_bind(verbs, certificates):
    tls = Tls(*certificates["server"])
    with ExtenderServer(verbs, port=0, tls=tls) as server:
        assert send(server, "POST", "/bind", BINDING, tls=trust(certificates))[0] == 401


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", 413),
    ],
)
def test_large_or_ambiguous_headers_are_rejected(server, authorization, status):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(authorization)
        assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_slow_body_times_out(verbs):
    with ExtenderServer(verbs, port=0, limits=HttpLimits(body_s=0.5)) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as client:
            client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
            began_s = time.monotonic()
            with pytest.raises(OSError):
                for _ in range(300):
                    client.sendall(b" ")
                    time.sleep(0.05)
            assert time.monotonic() - began_s < 10


def test_exhausted_memory_is_reported_with_retry_after(verbs):
    verbs.before = hold = BlockedCall()
    body = json.dumps({"Pod": {**POD, "x": "x" * 600_000}, "NodeNames": ["n1"]}).encode()
    with (
        ThreadPoolExecutor(1) as pool,
        ExtenderServer(verbs, port=0, body_limits=BodyLimits(anonymous_memory_mib=2)) as server,
    ):
        first = pool.submit(send, server, "POST", "/filter", body)
        assert hold.entered.wait(10)
        status, text, response = send(server, "POST", "/filter", body)
        assert (status, response.getheader("Retry-After")) == (503, "1")
        assert "retry" in text
        hold.release.set()
        assert first.result()[0] == 200
        assert send(server, "POST", "/filter", body)[0] == 200


def test_an_authenticated_connection_survives_a_connection_flood(token_server, token):
    with closing(connect(token_server)) as connection:
        authorization = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/status", headers=authorization)
        connection.getresponse().read()
        before = connection.sock
        with idle_connections(token_server.url, 300):
            connection.request("POST", "/bind", BINDING, authorization)
            assert connection.getresponse().status == 200
            assert connection.sock is before
