"""Health check: a server that serves, one that does not, none, and TLS."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from presage.errors import ServiceError
from presage.serving.client.credentials import Credentials
from presage.serving.health_check import check_health, main
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def server(status, credentials=None):
    """Run a health service; yield its address."""
    servicer = health.HealthServicer()
    servicer.set("", status)
    out = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, out)
    address = "127.0.0.1:0"
    port = (
        out.add_insecure_port(address)
        if credentials is None
        else out.add_secure_port(address, credentials)
    )
    out.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        out.stop(None)


def test_a_server_that_serves_is_healthy():
    with server(SERVING) as target:
        assert main([target]) == 0


def test_a_server_that_loads_a_release_is_not(capsys):
    with server(NOT_SERVING) as target:
        assert main([target]) == 1

    assert capsys.readouterr().err == f"error: {target} is NOT_SERVING\n"


def test_no_server_is_reported_in_one_line_within_the_time_limit(capsys):
    assert main([f"127.0.0.1:{free_port()}", "--timeout-s", "0.5"]) == 1

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_tls_is_checked_by_the_authority_and_the_name_in_the_certificate(tmp_path):
    authority = make_authority(tmp_path, "ca")
    certificate, key = make_certificate(tmp_path, "presage-serve.presage", authority)
    other, _ = make_authority(tmp_path, "other")
    own = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    with server(SERVING, own) as target:
        known = Credentials(ca=authority[0])
        check_health(target, credentials=known, server_name="presage-serve.presage")
        with pytest.raises(ServiceError):
            check_health(target, credentials=known, server_name="another", timeout_s=1)
        with pytest.raises(ServiceError):
            check_health(target, credentials=Credentials(ca=other), timeout_s=1)
        with pytest.raises(ServiceError):
            check_health(target, timeout_s=1)


def test_an_authority_that_is_no_file_is_an_error(capsys):
    assert main(["127.0.0.1:1", "--ca", "nowhere.pem"]) == 1

    assert "nowhere.pem" in capsys.readouterr().err


def test_the_module_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "presage.serving.health_check", f"127.0.0.1:{free_port()}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
