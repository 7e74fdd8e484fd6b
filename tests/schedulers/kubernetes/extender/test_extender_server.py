"""The extender's server over real HTTP, asked by the stand-in of kube-scheduler and by hand."""

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
from tests.schedulers.kubernetes.kube_scheduler.extender import Extender, ExtenderError, Filtered
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
    """Decides by names alone, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.before: Callable[[], object] = lambda: None

    def filter(self, args: FilterArgs) -> FilterResult:
        self.asked.append(args)
        self.before()
        left = [name for name in args.nodes if name in ("n1", "n2")]
        return FilterResult(left, {"n0": "kept for others"})

    def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        self.asked.append(args)
        return [HostPriority(name, int(name[1:])) for name in args.nodes]

    def bind(self, args: BindArgs) -> str:
        self.asked.append(args)
        return "" if args.node == "n1" else f"{args.pod_name} is to go to n1"

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        self.asked.append(args)
        return {"n1": Victims(dict(list(args.victims["n1"].pods.items())[:1]))}

    def status(self) -> Json:
        return {"forecasts": "up", "asked": len(self.asked)}


class Hold:
    """Keeps a verb in its call until it may go on."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.asked.set()
        assert self.go_on.wait(10)


@pytest.fixture
def verbs() -> Verbs:
    return Verbs()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Accepted tokens; that of ``kube-scheduler`` may bind, that of ``reader`` may not."""
    for name, role in (("kube-scheduler", "bind"), ("reader", "predict")):
        token = add_token(tmp_path / "tokens", name, [role])
        (tmp_path / f"{name}.token").write_text(token)
    return tmp_path / "tokens"


@pytest.fixture
def token(token_file: Path) -> str:
    return (token_file.parent / "kube-scheduler.token").read_text()


@pytest.fixture
def server(verbs: Verbs) -> Iterator[ExtenderServer]:
    """Without credentials."""
    with ExtenderServer(verbs, port=0, body_limits=BodyLimits(body_mib=1)) as server:
        yield server


@pytest.fixture
def closed(verbs: Verbs, token_file: Path) -> Iterator[ExtenderServer]:
    """With tokens."""
    with ExtenderServer(verbs, port=0, tokens=TokenFile(token_file)) as server:
        yield server


def connect(server: ExtenderServer, tls: ssl.SSLContext | None = None) -> HTTPConnection:
    where = urlsplit(server.url)
    if tls is not None:
        return HTTPSConnection(where.hostname or "", where.port, timeout=10, context=tls)
    return HTTPConnection(where.hostname or "", where.port, timeout=10)


def ask(
    server: ExtenderServer,
    method: str,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, str, HTTPResponse]:
    with closing(connect(server, tls)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer


def extender(server: ExtenderServer, *, by_name: bool = True, token: str = "") -> Extender:
    """As kube-scheduler configures it."""
    verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
    url = server.url.replace("://", f"://presage:{token}@") if token else server.url
    return Extender({"urlPrefix": url, **verbs, "weight": 2, "nodeCacheCapable": by_name})


@pytest.mark.parametrize("by_name", [True, False])
def test_kube_scheduler_is_answered_by_the_verbs(closed, verbs, token, by_name):
    asks = extender(closed, by_name=by_name, token=token)

    assert asks.filter(POD, NODES) == Filtered(NODES[1:], {"n0": "kept for others"}, {})
    assert asks.scores(POD, NODES) == {"n0": 0, "n1": 20, "n2": 40}
    asks.bind(POD, "n1")
    with pytest.raises(ExtenderError, match="a is to go to n1"):
        asks.bind(POD, "n2")
    assert asks.preempt(POD, VICTIMS) == {"n1": ["n1-0"]}

    filtered, prioritized, bound, _, preempted = verbs.asked
    whole = {node["metadata"]["name"]: None if by_name else node for node in NODES}
    assert filtered == prioritized == FilterArgs(POD, whole, by_name)
    assert bound == BindArgs("a", "default", "uid-a", "n1")
    assert preempted.victims["n0"].pods == {
        victim["metadata"]["uid"]: None if by_name else victim for victim in VICTIMS["n0"]
    }


def test_health_and_status_are_there_to_be_seen(server):
    assert ask(server, "GET", "/healthz")[:2] == (200, "ok")
    assert ask(server, "HEAD", "/healthz")[:2] == (200, "")
    assert json.loads(ask(server, "GET", "/status?pretty")[1]) == {
        "forecasts": "up",
        "asked": 0,
        "failed_logins": 0,
    }


def test_paths_are_below_the_prefix(verbs):
    with ExtenderServer(verbs, port=0, prefix="/presage/") as server:
        assert server.url.endswith("/presage")
        assert extender(server).filter(POD, NODES).nodes == NODES[1:]
        assert ask(server, "GET", "/presage/healthz")[0] == 200
        assert ask(server, "GET", "/healthz")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/filter", b"{", 400, "the body is not valid JSON .*; send ExtenderArgs"),
        ("POST", "/filter", None, 400, "the body is not valid JSON"),
        ("POST", "/bind", b'{"podname": "a"}', 401,
         "bind and preempt need authentication.*--client-ca or --tok"),
        ("POST", "/preempt", b"{}", 401,
         "bind and preempt need authentication.*--client-ca or --tokens"),
        ("POST", "/sort", b"{}", 404, "unknown path; known are /filter, /prioritize, /bind"),
        ("GET", "/filter", None, 405, "/filter accepts POST, not GET"),
        ("DELETE", "/status", None, 405, "/status accepts GET, not DELETE"),
        ("POST", "/filter", b" " * 2**20 + b"{}", 413,
         "of 1,048,578 bytes exceeds the limit of 1,048,576"),
        ("TRACE", "/healthz", None, 501, "Unsupported method"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_says_why_in_a_line(server, method, path, body, status, said):
    found, text, answer = ask(server, method, path, body)

    assert found == status
    assert re.search(said, text)
    assert len(text.splitlines()) == 1
    assert (answer.getheader("Allow") is not None) == (status == 405)


def test_a_verb_that_fails_is_logged_and_the_next_request_is_answered(server, verbs, caplog):
    def fail() -> None:
        raise InvalidRequestError("the forecaster takes\nno such job")

    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = fail
    with closing(connect(server)) as connection, caplog.at_level(logging.ERROR):
        connection.request("POST", "/filter", body)
        answer = connection.getresponse()
        assert answer.status == 500  # what kube-scheduler sent was right
        assert answer.read() == b"InvalidRequestError: the forecaster takes no such job"
        verbs.before = lambda: None
        connection.request("POST", "/filter", body)
        assert connection.getresponse().status == 200

    (record,) = caplog.records
    assert record.getMessage() == "/filter failed"
    assert record.exc_info is not None
    with pytest.raises(ExtenderError, match="500"):
        verbs.before = fail
        extender(server).filter(POD, NODES)


def test_a_connection_is_kept_through_refusals(server):
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
def test_a_body_of_unknown_length_is_refused_and_ends_the_connection(server, header, status):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as client:
        client.sendall(f"POST /filter HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "said", [b"", b"POST /fil", b"POST /filter HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_silent_client_is_hung_up_on(verbs, said):
    limits = HttpLimits(idle_s=0.2, head_s=0.2, body_s=0.2)
    with ExtenderServer(verbs, port=0, limits=limits) as server:
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port), timeout=10) as client:
            client.sendall(said)
            assert client.recv(1) == b""


def test_requests_are_answered_side_by_side(server, verbs):
    together = threading.Barrier(8, timeout=10)
    verbs.before = together.wait
    asks = extender(server)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asks.filter(POD, NODES).nodes, range(8)))
    assert answers == [NODES[1:]] * 8


def test_at_its_end_what_was_asked_is_answered_and_idle_connections_are_closed(verbs):
    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = hold = Hold()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0) as server:
            idle = connect(server)
            idle.request("GET", "/healthz")
            idle.getresponse().read()
            answer = pool.submit(ask, server, "POST", "/filter", body)
            assert hold.asked.wait(10)
            threading.Timer(0.3, hold.go_on.set).start()
        status, _, response = answer.result()
    assert (status, response.getheader("Connection")) == (200, "close")
    with closing(idle):
        assert idle.sock.recv(1) == b""
    with pytest.raises(OSError):
        ask(server, "GET", "/healthz")


def test_a_verb_that_hangs_holds_up_the_end_no_longer_than_the_grace(verbs):
    verbs.before = hold = Hold()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0, grace_s=0.1) as server:
            pool.submit(extender(server).filter, POD, NODES)
            assert hold.asked.wait(10)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5
        hold.go_on.set()


def test_it_listens_beyond_loopback_only_with_leave_and_on_a_port_that_is_free(server, verbs):
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


def trust(certificates, mine: str | None = None) -> ssl.SSLContext:
    """A client that trusts our authority, with a certificate of its own or none."""
    context = ssl.create_default_context(cafile=certificates["ours"][0])
    if mine:
        context.load_cert_chain(*certificates[mine])
    return context


def test_over_tls_strangers_are_let_in_only_where_no_certificate_is_asked_for(verbs, certificates):
    tls = Tls(*certificates["server"])
    with ExtenderServer(verbs, port=0, tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert ask(server, "GET", "/healthz", tls=trust(certificates))[:2] == (200, "ok")
        with pytest.raises(OSError):
            ask(server, "GET", "/healthz")

    with ExtenderServer(
        verbs, port=0, tls=replace(tls, client_ca=certificates["ours"][0])
    ) as mutual:
        assert ask(mutual, "GET", "/healthz", tls=trust(certificates, "scheduler"))[0] == 200
        for mine in (None, "stranger"):
            with pytest.raises(OSError):
                ask(mutual, "GET", "/healthz", tls=trust(certificates, mine))


def test_over_tls_a_client_that_never_shakes_hands_holds_nobody_up(verbs, certificates):
    with ExtenderServer(verbs, port=0, tls=Tls(*certificates["server"])) as server:
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port), timeout=10):
            assert ask(server, "GET", "/healthz", tls=trust(certificates))[0] == 200


def test_over_tls_what_was_asked_is_answered_at_the_end(verbs, certificates):
    body = (GOLDEN / "filter_args_names.json").read_bytes()
    verbs.before = hold = Hold()
    with ThreadPoolExecutor(1) as pool:
        with ExtenderServer(verbs, port=0, tls=Tls(*certificates["server"])) as server:
            answer = pool.submit(ask, server, "POST", "/filter", body, trust(certificates))
            assert hold.asked.wait(10)
            threading.Timer(0.3, hold.go_on.set).start()
        assert answer.result()[0] == 200


def test_a_certificate_that_cannot_be_used_is_named(verbs, certificates, tmp_path):
    certificate, key = certificates["server"]
    nothing = tmp_path / "nothing.pem"
    for tls, said in [
        (Tls(certificate, nothing), f"--tls-key {nothing}: cannot be loaded"),
        (Tls(certificate, certificates["scheduler"][1]), "KEY_VALUES_MISMATCH"),
        (Tls(certificate, key, client_ca=key), f"--client-ca {key}: cannot be loaded"),
    ]:
        with pytest.raises(ServiceError, match=re.escape(said)):
            ExtenderServer(verbs, port=0, tls=tls)
