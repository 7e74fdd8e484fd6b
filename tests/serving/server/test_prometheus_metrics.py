"""Metrics as Prometheus reads them, from one process and summed over several."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from prometheus_client import multiprocess
from prometheus_client.parser import text_string_to_metric_families

from presage.errors import ServiceError
from presage.serving.server.prometheus_metrics import (
    MULTIPROCESS_DIR_VARIABLE,
    Metrics,
    serve_metrics,
)
from tests.serving.support.processes import free_port

# What dashboards and alerts ask for: a name here is never taken back.
NAMES = {
    "requests", "request_seconds", "request_rows", "rejections", "queue_rows", "streams",
    "forecasts", "release", "release_loaded_timestamp_seconds", "releases_rejected", "outcomes",
    "outcome_ratio", "outcome_in_interval", "drift", "drift_evidence", "response_cache_hits",
    "unlogged_calls", "offset_outcomes", "http_responses",
}  # fmt: skip


@contextmanager
def shown(metrics: Metrics | None, host: str = "127.0.0.1"):
    """Return a function that reads a sample's value over HTTP, as Prometheus does."""
    port = free_port()
    stop = serve_metrics(metrics, host, port)
    where = f"[{host}]" if ":" in host else host

    def value(name: str, **labels: str) -> float | None:
        with urllib.request.urlopen(f"http://{where}:{port}/metrics", timeout=5) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return found[0] if found else None

    try:
        yield value
    finally:
        stop()


def test_the_metric_names_are_stable():
    counted = {family.name for family in Metrics().registry.collect()}

    assert counted == {f"presage_{name}" for name in NAMES}


def test_calls_are_counted_by_method_and_status():
    metrics = Metrics()
    for _ in range(3):
        metrics.count_call("Predict", "OK", 0.004, 2)
    metrics.count_call("Predict", "NOT_FOUND", 0.004, 0)

    with shown(metrics) as value:
        assert value("presage_requests_total", method="Predict", code="OK") == 3
        assert value("presage_requests_total", method="Predict", code="NOT_FOUND") == 1
        assert value("presage_request_seconds_count", method="Predict") == 4
        assert value("presage_request_seconds_bucket", method="Predict", le="0.005") == 4
        assert value("presage_request_seconds_bucket", method="Predict", le="0.002") == 0
        assert value("presage_request_rows_sum", method="Predict") == 6
        assert value("presage_request_rows_count", method="Predict") == 3  # of those that had any
        assert value("process_resident_memory_bytes") > 1e6
        assert value("python_gc_objects_collected_total", generation="0") >= 0


def test_forecasts_are_counted_by_domain():
    metrics = Metrics()
    metrics.count_domain("step_time_s", 3, 1)
    metrics.count_domain("step_time_s", 0, 2)

    with shown(metrics) as value:
        assert value("presage_forecasts_total", quantity="step_time_s", in_domain="true") == 3
        assert value("presage_forecasts_total", quantity="step_time_s", in_domain="false") == 3


def test_the_release_that_is_served_is_1_and_those_before_it_0():
    metrics = Metrics()
    metrics.set_release("aaa", 1e9, "")
    metrics.set_release("bbb", 2e9, "aaa")

    with shown(metrics) as value:
        assert value("presage_release", release_id="aaa") == 0
        assert value("presage_release", release_id="bbb") == 1
        assert value("presage_release_loaded_timestamp_seconds") == 2e9


def test_the_port_is_free_again_when_it_is_stopped():
    port = free_port()
    serve_metrics(Metrics(), "127.0.0.1", port)()
    socket.create_server(("127.0.0.1", port)).close()


def test_metrics_are_served_on_an_ipv6_address():
    with shown(Metrics(), "::1") as value:
        assert value("presage_queue_rows") == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no-such-host.invalid"])
def test_the_error_names_an_address_that_cannot_be_bound(host):
    port = free_port()
    stop = serve_metrics(Metrics(), "127.0.0.1", port)
    try:
        with pytest.raises(ServiceError, match=rf"port {port} of {host} \(.*--metrics-port"):
            serve_metrics(Metrics(), host, port)
    finally:
        stop()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_the_error_names_an_invalid_port(port):
    with pytest.raises(ServiceError, match=rf"port {port} of 127\.0\.0\.1"):
        serve_metrics(Metrics(), "127.0.0.1", port)


# What a worker counts before it waits for its end.
WORKER = """
import os, sys
from presage.serving.server.prometheus_metrics import Metrics

metrics = Metrics()
for _ in range(int(sys.argv[1])):
    metrics.count_call("Predict", "OK", 0.001, 4)
metrics.queue_rows.set(5)
metrics.streams.inc()
metrics.set_release("aaa", 1e9 + int(sys.argv[1]), "")
metrics.outcomes.labels("accepted").inc()
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """Two processes that count into one folder, with 2 and 3 calls."""
    monkeypatch.setenv(MULTIPROCESS_DIR_VARIABLE, str(tmp_path))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(calls)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for calls in (2, 3)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_the_sums_of_several_processes_are_shown_and_outlive_them(workers):
    with shown(None) as value:
        assert value("presage_requests_total", method="Predict", code="OK") == 5
        assert value("presage_request_rows_sum", method="Predict") == 20
        assert value("presage_request_seconds_bucket", method="Predict", le="0.001") == 5
        assert value("presage_outcomes_total", result="accepted") == 2
        assert value("presage_queue_rows") == 10
        assert value("presage_streams") == 2
        assert value("presage_release", release_id="aaa") == 1
        assert value("presage_release_loaded_timestamp_seconds") == 1e9 + 3

        workers[1].kill()
        workers[1].wait()
        multiprocess.mark_process_dead(workers[1].pid)
        assert value("presage_requests_total", method="Predict", code="OK") == 5
        assert value("presage_queue_rows") == 5
        assert value("presage_streams") == 1
        assert value("presage_release_loaded_timestamp_seconds") == 1e9 + 2


def test_a_process_that_starts_later_is_in_the_sums(workers):
    with shown(None) as value:
        subprocess.run(
            [sys.executable, "-c", WORKER, "7"], input="", text=True, check=True,
            stdout=subprocess.DEVNULL, env=dict(os.environ),
        )  # fmt: skip
        assert value("presage_requests_total", method="Predict", code="OK") == 12
