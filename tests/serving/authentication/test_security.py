"""Authentication and authorization of a real server, and the absence of secrets in logs."""

import socket
import ssl
from contextlib import suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from presage.errors import (
    ConfigError,
    ForbiddenError,
    OverloadedError,
    ServiceError,
    UnauthenticatedError,
)
from presage.features.placement import Placement
from presage.serving.authentication.token_file import add_token
from presage.serving.client.client import PresageClient
from presage.serving.client.credentials import Credentials
from presage.serving.outcomes.outcome import Outcome
from presage.serving.server_options import Options, Tls
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pems")
    ours, theirs = make_authority(folder, "ours"), make_authority(folder, "theirs")
    return {
        "ca": ours[0],
        "server": make_certificate(folder, "server", ours),
        "scheduler": make_certificate(folder, "scheduler-1", ours),
        "stranger": make_certificate(folder, "stranger", theirs),
    }


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    return path, {
        name: add_token(path, name, roles)
        for name, roles in {
            "scheduler": ["predict", "report"],
            "reader": ["predict"],
            "operator": ["admin", "predict"],
        }.items()
    }


def asking(server, **credentials):
    return PresageClient(server.target, timeout_s=5, credentials=Credentials(**credentials))


# Tokens ----------------------------------------------------------------------------------------


def test_each_role_allows_only_its_own_methods(release, tokens, tmp_path, job, cpu):
    path, secrets = tokens
    options = Options(port=0, tokens=path, outcomes=tmp_path / "log.db")
    outcome = Outcome("key", job(), cpu, step_time_median_s=1.0)
    with start_server(release, options) as server:
        for name, may_report, may_reload in (
            ("scheduler", True, False),
            ("reader", False, False),
            ("operator", False, True),
        ):
            with asking(server, token=secrets[name]) as client:
                assert client.predict([Placement(job(), cpu)])
                for may, act in (
                    (may_report, lambda c=client: c.report([outcome])),
                    (may_reload, lambda c=client: c.reload()),
                ):
                    if may:
                        act()
                    else:
                        with pytest.raises(ForbiddenError, match=f"'{name}' lacks the role"):
                            act()


@pytest.mark.parametrize("token", ["", "wrong", "Bearer", "x" * 5000])
def test_calls_without_a_known_token_are_rejected(release, tokens, token, job, cpu, caplog, capfd):
    with (
        start_server(release, Options(port=0, tokens=tokens[0], access_log=True)) as server,
        asking(server, token=token) as client,
        pytest.raises(UnauthenticatedError) as caught,
    ):
        client.predict([Placement(job(), cpu)])
    if token:
        assert "does not know the token" in str(caught.value)
    for said in (str(caught.value), caplog.text, capfd.readouterr().err):
        assert len(token) < 5 or token not in said


def test_a_revoked_token_is_rejected(release, tokens, job, cpu):
    path, secrets = tokens
    with (
        start_server(release, Options(port=0, tokens=path)) as server,
        asking(server, token=secrets["reader"]) as client,
    ):
        client.predict([Placement(job(), cpu)])
        lines = [line for line in path.read_text().splitlines() if not line.startswith("reader ")]
        path.write_text("\n".join(lines) + "\n")

        def refused():
            try:
                client.predict([Placement(job(), cpu)])
            except UnauthenticatedError:
                return True
            return False

        wait_until(refused)


def test_health_needs_no_token(release, tokens):
    with (
        start_server(release, Options(port=0, tokens=tokens[0])) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_no_secret_is_ever_logged(release, tokens, job, cpu, tmp_path):
    path, secrets = tokens
    options = ("--tokens", path, "--access-log", "--no-outcomes", "--release", release.folder)
    with serving(*options, cwd=tmp_path) as server:
        for token in (*secrets.values(), "guess-of-somebody"):
            with asking(server, token=token) as client, suppress(UnauthenticatedError):
                client.predict([Placement(job(), cpu)])
        server.process.terminate()
        server.process.wait(10)
    said = "".join(server.stderr)
    assert len(server.events("call")) == 4
    assert {row["client"] for row in server.events("call")} == {
        "scheduler",
        "reader",
        "operator",
        "127.0.0.1",
    }
    for secret in (*secrets.values(), "guess-of-somebody"):
        assert secret not in said
    for line in path.read_text().splitlines():
        assert line.split()[2] not in said


# TLS -------------------------------------------------------------------------------------------


def test_with_a_certificate_the_connection_is_encrypted(release, pems, job, cpu):
    tls = Tls(*pems["server"])
    with start_server(release, Options(port=0, tls=tls)) as server:
        with asking(server, ca=pems["ca"]) as client:
            assert client.predict([Placement(job(), cpu)])
        with asking(server) as plain, pytest.raises(ServiceError):
            plain.release()
        with asking(server, tls=True) as distrusting, pytest.raises(ServiceError):
            distrusting.release()
        context = ssl.create_default_context(cafile=str(pems["ca"]))
        with (
            socket.create_connection((server.host, server.port), timeout=5) as plain_socket,
            context.wrap_socket(plain_socket, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.version() in {"TLSv1.2", "TLSv1.3"}


def test_with_a_client_ca_only_its_clients_are_accepted(release, pems, job, cpu, caplog):
    tls = Tls(pems["server"][0], pems["server"][1], pems["ca"])
    with start_server(release, Options(port=0, tls=tls, rows_per_s=1.0)) as server:
        known, stranger = (
            {"ca": pems["ca"], "certificate": pems[who][0], "key": pems[who][1]}
            for who in ("scheduler", "stranger")
        )
        with asking(server, **known) as client:
            assert client.predict([Placement(job(), cpu)])
            with pytest.raises(OverloadedError):  # limits go by the certificate's name
                for _ in range(3):
                    client.predict([Placement(job(), cpu)] * 4)
        for credentials in (stranger, {"ca": pems["ca"]}):
            with asking(server, **credentials) as client, pytest.raises(ServiceError):
                client.release()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tls, tmp: Tls(tmp / "none", tls.key), "--tls-cert .*none: cannot be read"),
        (lambda tls, tmp: Tls(tls.key, tls.key), "is no certificate for the key"),
        (lambda tls, tmp: Tls(tls.certificate, tls.certificate), "is no certificate for the key"),
    ],
)
def test_the_error_names_invalid_certificates(release, pems, tmp_path, change, said):
    with pytest.raises(ServiceError, match=said):
        start_server(release, Options(port=0, tls=change(Tls(*pems["server"]), tmp_path)))


def test_a_server_with_tls_and_tokens_may_listen_beyond_loopback(release, pems, tokens):
    options = Options(host="0.0.0.0", port=0, tls=Tls(*pems["server"]), tokens=tokens[0])
    with start_server(release, options) as server:
        assert server.port


# Limits of a client ----------------------------------------------------------------------------


def test_a_client_beyond_its_row_limit_gets_a_retry_delay(release, tokens, job, cpu):
    path, secrets = tokens
    with start_server(release, Options(port=0, tokens=path, rows_per_s=100.0)) as server:
        with asking(server, token=secrets["reader"]) as greedy:
            with pytest.raises(OverloadedError, match="more than 100 rows per second") as caught:
                for _ in range(10):
                    greedy.predict([Placement(job(), cpu)] * 50)
            assert caught.value.retry_after_s and 0 < caught.value.retry_after_s < 5
        with asking(server, token=secrets["scheduler"]) as other:
            assert other.predict([Placement(job(), cpu)])


def test_a_server_does_not_start_with_an_invalid_token_file(release, tmp_path):
    for text, said in (
        ("scheduler predict nothash\n", "tokens:1: must be NAME"),
        (f"scheduler owner {'0' * 64}\n", "role 'owner' does not exist"),
        ("# no tokens\n", "contains no token"),
    ):
        (tmp_path / "tokens").write_text(text)
        with pytest.raises(ConfigError, match=said):
            start_server(release, Options(port=0, tokens=tmp_path / "tokens"))
    with pytest.raises(ConfigError, match="cannot be read"):
        start_server(release, Options(port=0, tokens=tmp_path / "none"))
