"""Tokens, roles, TLS, client certificates and host names over HTTP, as over gRPC."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys

import pytest

from presage.errors import ServiceError
from presage.serving.authentication.token_file import add_token
from presage.serving.rest.rest_handler import _peer
from presage.serving.server_options import Options, Tls
from tests.serving.rest.http_client import ask, bearer, of_owner
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port, serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pems")
    authority = make_authority(folder, "ours")
    return {
        "ca": authority[0],
        "server": make_certificate(folder, "server", authority),
        "scheduler": make_certificate(folder, "scheduler-1", authority),
    }


def trusting(pems, client=None):
    """Return the TLS context of a client, with a certificate if it has one."""
    context = ssl.create_default_context(cafile=pems["ca"])
    if client:
        context.load_cert_chain(*pems[client])
    return context


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    names = {"reader": ["predict"], "reporter": ["report"], "operator": ["admin", "predict"]}
    return path, {name: add_token(path, name, roles) for name, roles in names.items()}


def test_a_token_has_its_roles(release, tokens):
    path, token = tokens
    with start_server(release, Options(port=0, http_port=0, tokens=path)) as server:
        asked = [
            ask(server, verb, path, headers=bearer(token[name])).status
            for name, verb, path in (
                ("reader", "GET", "/v1/release"),
                ("reader", "POST", "/v1/reload"),
                ("reporter", "GET", "/v1/release"),
                ("operator", "POST", "/v1/reload"),
            )
        ]
        without = ask(server, "GET", "/v1/release")
        public = [ask(server, "GET", path).status for path in ("/v1/health", "/openapi.json")]

    assert asked == [200, 403, 403, 200]
    assert without.status == 401
    assert "requires a token" in without.json["detail"]
    assert public == [200, 200]


def test_a_revoked_token_is_rejected_on_an_open_connection(release, tokens, job):
    path, token = tokens
    with start_server(release, Options(port=0, http_port=0, tokens=path)) as server:
        assert ask(server, "GET", "/v1/release", headers=bearer(token["reader"])).status == 200
        path.write_text("")
        wait_until(
            lambda: ask(server, "GET", "/v1/release", headers=bearer(token["reader"])).status == 401
        )


def test_the_owner_has_all_roles_and_others_may_only_predict(rest):
    assert ask(rest, "GET", "/v1/release").status == 200
    assert ask(rest, "POST", "/v1/outcomes", "{}").status == 401
    assert ask(rest, "POST", "/v1/outcomes", "{}", headers=of_owner(rest)).status == 400
    assert ask(rest, "POST", "/v1/reload", headers=of_owner(rest)).status == 200


def test_a_guess_is_delayed_and_logged_without_the_token(release, tmp_path):
    options = ("--release", release.folder, "--no-outcomes", "--access-log", "--http-port", 0)
    with serving(*options, cwd=tmp_path) as server:
        for _ in range(2):
            answer = ask(server, "GET", "/v1/release", headers=bearer("s3cret-guess"))
            assert answer.status == 401
        ask(server, "GET", "/v1/release", headers={"X-Request-Id": "seen-1"})
        server.process.terminate()
        assert server.process.wait(20) == 0

    assert server.events("authentication failed")
    calls = server.events("call")
    assert [call["code"] for call in calls] == ["UNAUTHENTICATED", "UNAUTHENTICATED", "OK"]
    assert calls[2]["request_id"] == "seen-1"
    assert calls[2]["client"] == "127.0.0.1"
    assert "s3cret" not in json.dumps(server.stderr)


def test_tls_and_client_certificates(release, pems):
    certificate, key = pems["server"]
    tls = Tls(certificate, key, client_ca=pems["ca"])
    with start_server(release, Options(port=0, http_port=0, tls=tls)) as server:
        known = ask(server, "POST", "/v1/reload", tls=trusting(pems, "scheduler"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "GET", "/v1/release", tls=trusting(pems))
        with pytest.raises(ConnectionError):
            ask(server, "GET", "/v1/release")

    assert known.status == 200


def test_tls_with_tokens(release, pems, tokens):
    path, token = tokens
    options = Options(port=0, http_port=0, tls=Tls(*pems["server"]), tokens=path)
    with start_server(release, options) as server:
        known = ask(
            server, "GET", "/v1/release", headers=bearer(token["reader"]), tls=trusting(pems)
        )
        unknown = ask(server, "GET", "/v1/release", tls=trusting(pems))

    assert (known.status, unknown.status) == (200, 401)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("attacker.example", 421),
        ("attacker.example:8080", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
def test_a_server_without_credentials_answers_to_loopback_names_only(rest, host, status):
    """A page of another site may resolve its own name to 127.0.0.1."""
    assert ask(rest, "GET", "/v1/release", headers={"Host": host}).status == status


def test_a_server_with_tokens_answers_to_any_name(release, tokens):
    path, token = tokens
    with start_server(release, Options(port=0, http_port=0, tokens=path)) as server:
        headers = bearer(token["reader"]) | {"Host": "presage.example"}
        assert ask(server, "GET", "/v1/release", headers=headers).status == 200


def test_a_port_in_use_is_an_error_with_the_option(release, rest):
    with pytest.raises(ServiceError, match="pass another --http-port"):
        start_server(release, Options(port=0, http_port=rest.http_port))


def test_the_port_is_closed_unless_asked_for(server):
    assert server.http_port == 0


def test_workers_share_the_port(release, tmp_path):
    port = free_port()
    options = ("--release", release.folder, "--no-outcomes", "--workers", 2, "--http-port", port)
    with serving(*options, cwd=tmp_path) as server:
        assert server.http_port == port
        assert [ask(server, "GET", "/v1/release").status for _ in range(8)] == [200] * 8
        assert ask(server, "POST", "/v1/reload", headers=of_owner(server)).status == 200


def test_a_server_without_the_port_imports_none_of_its_modules():
    code = (
        "import sys, presage.serving.server.server\n"
        "print([name for name in sys.modules if name.startswith('presage.serving.rest')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("127.0.0.1", 4711), "ipv4:127.0.0.1:4711"),
        (("::ffff:10.1.2.3", 80, 0, 0), "ipv4:10.1.2.3:80"),
        (("::1", 80, 0, 0), "ipv6:%5B%3A%3A1%5D:80"),
    ],
)
def test_addresses_are_in_the_notation_of_grpc(address, peer):
    assert _peer(address) == peer


def test_an_address_of_ipv6(release):
    with start_server(release, Options(host="::1", port=0, http_port=0, rows_per_s=9)) as server:
        answer = ask(server, "GET", "/v1/release")

    assert answer.status == 200
    assert server.address == f"[::1]:{server.port} and http://[::1]:{server.http_port}"
