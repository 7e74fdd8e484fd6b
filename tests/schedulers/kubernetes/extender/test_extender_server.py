"""The extender's server over real HTTP, called by the fake kube-scheduler and directly."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from presage.errors import InvalidRequestError, ServiceError
from presage.schedulers.kubernetes.extender.extender_http import BodyLimits
from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.authentication.token_file import TokenFile, add_token
from presage.serving.http.connection import HttpLimits
from presage.serving.server_options import Tls
from tests.schedulers.kubernetes.kube_scheduler.extender import (
    Extender,
    ExtenderError,
    FilterResponse,
)
from tests.serving.support.certificates import make_authority, make_certificate

GOLDEN = Path(__file__).parent / "golden"
POD: Json = {
    "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
    "spec": {"containers": [{"name": "train"}]},
}
NODES: list[Json] = [{"metadata": {"name": name}} for name in ("n0", "n1", "n2")]
VICTIMS = {
    node: [{"metadata": {"name": f"{node}-{i}", "uid": f"{node}-{i}"}} for i in range(2)]
    for node in ("n0", "n1")
}


class Verbs:
    """Verbs that decide by node names and record their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.before: Callable[[], object] = lambda: None

    def filter(self, args: FilterArgs) -> FilterResult:
        self.calls.append(args)
        self.before()
        passed = [name for name in args.nodes if name in ("n1", "n2")]
        return FilterResult(passed, {"n0": "reserved"})

    def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        self.calls.append(args)
        return [HostPriority(name, int(name[1:])) for name in args.nodes]

    def bind(self, args: BindArgs) -> str:
        self.calls.append(args)
        return "" if args.node == "n1" else f"{args.pod_name} must be bound to n1"

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        self.calls.append(args)
        return {"n1": Victims(dict(list(args.victims["n1"].pods.items())[:1]))}

    def status(self) -> Json:
        return {"forecasts": "up", "requests": len(self.calls)}


class BlockedCall:
    """Callback that blocks a verb until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.release.wait(10)


@pytest.fixture
def verbs() -> Verbs:
    return Verbs()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Token file: ``kube-scheduler`` may bind, ``reader`` may not."""
    for name, role in (("kube-scheduler", "bind"), ("reader", "predict")):
        token = add_token(tmp_path / "tokens", name, [role])
        (tmp_path / f"{name}.token").write_text(token)
    return tmp_path / "tokens"


@pytest.fixture
def token(token_file: Path) -> str:
    return (token_file.parent / "kube-scheduler.token").read_text()


@pytest.fixture
def server(verbs: Verbs) -> Iterator[ExtenderServer]:
    """Server without authentication."""
    with ExtenderServer(verbs, port=0, body_limits=BodyLimits(body_mib=1)) as server:
        yield server


@pytest.fixture
def token_server(verbs: Verbs, token_file: Path) -> Iterator[ExtenderServer]:
    """Server with tokens."""
    with ExtenderServer(verbs, port=0, tokens=TokenFile(token_file)) as server:
        yield server


def connect(server: ExtenderServer, tls: ssl.SSLContext | None = None) -> HTTPConnection:
    address = urlsplit(server.url)
    if tls is not None:
        return HTTPSConnection(address.hostname or "", address.port, timeout=10, context=tls)
    return HTTPConnection(address.hostname or "", address.port, timeout=10)


def send(
    server: ExtenderServer,
    method: str,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, str, HTTPResponse]:
    with closing(connect(server, tls)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(), response


def extender(server: ExtenderServer, *, by_name: bool = True, token: str = "") -> Extender:
    """Return an extender client as kube-scheduler configures it."""
    verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
    url = server.url.replace("://", f"://presage:{token}@") if token else server.url
    return Extender({"urlPrefix": url, **verbs, "weight": 2, "nodeCacheCapable": by_name})


@pytest.mark.parametrize("by_name", [True, False])
def test_requests_of_kube_scheduler_reach_the_verbs(token_server, verbs, token, by_name):
    client = extender(token_server, by_name=by_name, token=token)

    assert client.filter(POD, NODES) == FilterResponse(NODES[1:], {"n0": "reserved"}, {})
    assert client.scores(POD, NODES) == {"n0": 0, "n1": 20, "n2": 40}
    client.bind(POD, "n1")
    with pytest.raises(ExtenderError, match="a must be bound to n1"):
        client.bind(POD, "n2")
    assert client.preempt(POD, VICTIMS) == {"n1": ["n1-0"]}

    filtered, prioritized, bound, _, preempted = verbs.calls
    nodes = {node["metadata"]["name"]: None if by_name else node for node in NODES}
    assert filtered == prioritized == FilterArgs(POD, nodes, by_name)
    assert bound == BindArgs("a", "default", "uid-a", "n1")
    assert preempted.victims["n0"].pods == {
        victim["metadata"]["uid"]: None if by_name else victim for victim in VICTIMS["n0"]
    }


def test_health_and_status_are_served(server):
    assert send(server, "GET", "/healthz")[:2] == (200, "ok")
    assert send(server, "HEAD", "/healthz")[:2] == (200, "")
    assert json.loads(send(server, "GET", "/status?pretty")[1]) == {
        "forecasts": "up",
        "requests": 0,
        "failed_logins": 0,
    }


def test_paths_have_the_prefix(verbs):
    with ExtenderServer(verbs, port=0, prefix="/presage/") as server:
        assert server.url.endswith("/presage")
        assert extender(server).filter(POD, NODES).nodes == NODES[1:]
        assert send(server, "GET", "/presage/healthz")[0] == 200
        assert send(server, "GET", "/healthz")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/filter", b"{", 400, "the body is not valid JSON .*; send ExtenderArgs"),
        ("POST", "/filter", None, 400, "the body is not valid JSON"),
        ("POST", "/bind", b'{"podname": "a"}', 401, "need authentication, .*--client-ca or --tok"),
        ("POST", "/preempt", b"{}", 401, "need authentication, .*--client-ca or --tokens"),
        ("POST", "/sort", b"{}", 404, "unknown path; known are /filter, /prioritize, /bind"),
        ("GET", "/filter", None, 405, "/filter accepts POST, not GET"),
        ("DELETE", "/status", None, 405, "/status accepts GET, not DELETE"),
        ("POST", "/filter", b" " * 2**20 + b"{}", 413, "1,048,578 bytes exceeds .* 1,048,576"),
        ("TRACE", "/healthz", None, 501, "Unsupported method"),
    ],
)  # fmt: skip
def test_errors_have_a_status_and_a_reason_of_one_line(server, method, path, body, status, message):
    found, text, response = send(server, method, path, body)

    assert found == status
    assert re.search(message, text)
    assert len(text.splitlines()) == 1
    assert (response.getheader("Allow") is not None) == (status == 405)


def test_a_failing_verb_is_logged_and_the_next_request_succeeds(server, verbs, caplog):
    def fail() -> None:
        raise InvalidRequestError("the forecaster takes\nno such job")

    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = fail
    with closing(connect(server)) as connection, caplog.at_level(logging.ERROR):
        connection.request("POST", "/filter", body)
        response = connection.getresponse()
        assert response.status == 500  # the request was valid
        assert response.read() == b"InvalidRequestError: the forecaster takes no such job"
        verbs.before = lambda: None
        connection.request("POST", "/filter", body)
        assert connection.getresponse().status == 200

    (record,) = caplog.records
    assert record.getMessage() == "/filter failed"
    assert record.exc_info is not None
    with pytest.raises(ExtenderError, match="500"):
        verbs.before = fail
        extender(server).filter(POD, NODES)


def test_a_connection_survives_rejected_requests(server):
    with closing(connect(server)) as connection:
        connection.connect()
        socket_before = connection.sock
        for path, body in [("/sort", b"x" * 1000), ("/filter", b"{"), ("/healthz", b"")]:
            connection.request("POST", path, body)
            connection.getresponse().read()
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"
        assert connection.sock is socket_before


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Length: -1", 400),
        ("Content-Length: 1e3", 400),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_a_body_of_unknown_length_is_rejected_and_closes_the_connection(server, header, status):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(f"POST /filter HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        response = b"".join(iter(lambda: client.recv(4096), b""))
    assert response.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "message", [b"", b"POST /fil", b"POST /filter HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_silent_client_is_disconnected(verbs, message):
    limits = HttpLimits(idle_s=0.2, head_s=0.2, body_s=0.2)
    with ExtenderServer(verbs, port=0, limits=limits) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as client:
            client.sendall(message)
            assert client.recv(1) == b""


def test_requests_are_handled_concurrently(server, verbs):
    together = threading.Barrier(8, timeout=10)
    verbs.before = together.wait
    client = extender(server)
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: client.filter(POD, NODES).nodes, range(8)))
    assert responses == [NODES[1:]] * 8


def test_on_exit_requests_in_flight_complete_and_idle_connections_close(verbs):
    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = hold = BlockedCall()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0) as server:
            idle = connect(server)
            idle.request("GET", "/healthz")
            idle.getresponse().read()
            pending = pool.submit(send, server, "POST", "/filter", body)
            assert hold.entered.wait(10)
            threading.Timer(0.3, hold.release.set).start()
        status, _, response = pending.result()
    assert (status, response.getheader("Connection")) == (200, "close")
    with closing(idle):
        assert idle.sock.recv(1) == b""
    with pytest.raises(OSError):
        send(server, "GET", "/healthz")


def test_a_hanging_verb_delays_the_exit_by_at_most_the_grace_period(verbs):
    verbs.before = hold = BlockedCall()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0, grace_s=0.1) as server:
            pool.submit(extender(server).filter, POD, NODES)
            assert hold.entered.wait(10)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5
        hold.release.set()


def test_other_addresses_need_permission_and_ports_must_be_free(server, verbs):
    with pytest.raises(ServiceError, match=r"0\.0\.0\.0 is not a loopback address"):
        ExtenderServer(verbs, host="0.0.0.0", port=0)
    taken = urlsplit(server.url).port or 0
    with pytest.raises(ServiceError, match=f"port 127.0.0.1:{taken} is in use"):
        ExtenderServer(verbs, port=taken)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = make_authority(folder, "ours"), make_authority(folder, "theirs")
    return {
        "ours": ours,
        "server": make_certificate(folder, "server", ours),
        "scheduler": make_certificate(folder, "kube-scheduler", ours),
        "stranger": make_certificate(folder, "stranger", theirs),
    }


def trust(certificates, certificate_name: str | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts the authority, optionally with a client certificate."""
    context = ssl.create_default_context(cafile=certificates["ours"][0])
    if certificate_name:
        context.load_cert_chain(*certificates[certificate_name])
    return context


def test_with_a_client_ca_only_its_certificates_are_accepted(verbs, certificates):
    tls = Tls(*certificates["server"])
    with ExtenderServer(verbs, port=0, tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert send(server, "GET", "/healthz", tls=trust(certificates))[:2] == (200, "ok")
        with pytest.raises(OSError):
            send(server, "GET", "/healthz")

    with ExtenderServer(
        verbs, port=0, tls=replace(tls, client_ca=certificates["ours"][0])
    ) as mutual:
        assert send(mutual, "GET", "/healthz", tls=trust(certificates, "scheduler"))[0] == 200
        for certificate_name in (None, "stranger"):
            with pytest.raises(OSError):
                send(mutual, "GET", "/healthz", tls=trust(certificates, certificate_name))


def test_an_incomplete_tls_handshake_does_not_block_others(verbs, certificates):
    with ExtenderServer(verbs, port=0, tls=Tls(*certificates["server"])) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=10):
            assert send(server, "GET", "/healthz", tls=trust(certificates))[0] == 200


def test_on_exit_tls_requests_in_flight_complete(verbs, certificates):
    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = hold = BlockedCall()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0, tls=Tls(*certificates["server"])) as server:
            response = pool.submit(send, server, "POST", "/filter", body, trust(certificates))
            assert hold.entered.wait(10)
            threading.Timer(0.3, hold.release.set).start()
        assert response.result()[0] == 200


def test_an_invalid_certificate_is_named(verbs, certificates, tmp_path):
    certificate, key = certificates["server"]
    nothing = tmp_path / "nothing.pem"
    for tls, message in [
        (Tls(certificate, nothing), f"--tls-key {nothing}: cannot be loaded"),
        (Tls(certificate, certificates["scheduler"][1]), "KEY_VALUES_MISMATCH"),
        (Tls(certificate, key, client_ca=key), f"--client-ca {key}: cannot be loaded"),
    ]:
        with pytest.raises(ServiceError, match=re.escape(message)):
            ExtenderServer(verbs, port=0, tls=tls)
