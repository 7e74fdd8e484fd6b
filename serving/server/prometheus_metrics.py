"""Prometheus metrics of a server.

Several worker processes write to files in one folder (prometheus_client's multiprocess mode,
enabled by PROMETHEUS_MULTIPROC_DIR), and their parent serves the sums.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from presage.errors import ServiceError
from presage.serving.http.connection import HttpLimits
from presage.serving.http.http_server import WsgiServer

_LIMITS = HttpLimits(connections=32, per_peer=24)

MULTIPROCESS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Measured / forecast median.
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4)


class Metrics:
    """Metrics of one server; the help text of each one describes it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add: dict[str, Any] = {"registry": self.registry, "namespace": "presage"}
        self._requests = Counter(
            "requests", "Calls that ended, by method and gRPC status", ["method", "code"], **add
        )
        self._seconds = Histogram(
            "request_seconds", "Time from the arrival of a call to its end", ["method"],
            buckets=_SECONDS, **add,
        )  # fmt: skip
        self._rows = Histogram(
            "request_rows", "Placements, members, feature rows or outcomes per call", ["method"],
            buckets=_ROWS, **add,
        )  # fmt: skip
        self.repeated = Counter(
            "response_cache_hits", "Requests answered from the response cache", **add
        )
        self.unlogged = Counter("unlogged_calls", "Dropped lines of the access log", **add)
        self.rejections = Counter(
            "rejections", "Calls rejected before they were processed, by reason", ["reason"], **add
        )
        self._http_responses = Counter(
            "http_responses", "HTTP responses, by status", ["status"], **add
        )
        self.queue_rows = Gauge(
            "queue_rows", "Rows of large requests that wait or are being processed",
            multiprocess_mode="livesum", **add,
        )  # fmt: skip
        self.streams = Gauge(
            "streams", "Open PredictStream calls", multiprocess_mode="livesum", **add
        )
        self._forecasts = Counter(
            "forecasts", "Forecasts, by quantity and by whether they are in domain",
            ["quantity", "in_domain"], **add,
        )  # fmt: skip
        self.release = Gauge(
            "release", "1 for the served release, 0 for earlier ones", ["release_id"],
            multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.release_loaded = Gauge(
            "release_loaded_timestamp_seconds", "Unix time at which the served release was loaded",
            multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.releases_refused = Counter(
            "releases_rejected", "Releases that the server rejected", **add
        )
        self.outcomes = Counter("outcomes", "Reported outcomes, by result", ["result"], **add)
        self.outcome_ratio = Histogram(
            "outcome_ratio", "Measured / forecast median, of outcomes in domain", ["quantity"],
            buckets=_RATIOS, **add,
        )  # fmt: skip
        self.outcome_inside = Counter(
            "outcome_in_interval", "Outcomes in domain, by whether they lie in the 80 % interval",
            ["quantity", "in_interval"], **add,
        )  # fmt: skip
        self.drift = Gauge(
            "drift", "1 if outcomes deviate significantly from the calibration guarantee",
            ["quantity", "slice"], multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.drift_evidence = Gauge(
            "drift_evidence", "Evidence of drift; drift is reported at 1",
            ["quantity", "slice"], multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.offset_outcomes = Gauge(
            "offset_outcomes", "Outcomes of the served release that its offsets are learned from",
            multiprocess_mode="livemax", **add,
        )  # fmt: skip
        # Looking up a labelled counter costs as much as counting; there are few labels.
        self._method_counters = cache(self._find_method_counters)
        self._domain_counters = cache(self._find_domain_counters)

    def count_call(self, method: str, code: str, seconds: float, rows: int) -> None:
        """Count an ended call."""
        requests, seconds_histogram, rows_histogram = self._method_counters(method, code)
        requests.inc()
        seconds_histogram.observe(seconds)
        if rows:
            rows_histogram.observe(rows)

    def count_http(self, status: int) -> None:
        """Count an HTTP response; any thread may call it."""
        self._http_responses.labels(str(status)).inc()

    def count_domain(self, quantity: str, inside: int, outside: int) -> None:
        """Count forecasts in and out of domain."""
        inside_counter, outside_counter = self._domain_counters(quantity)
        if inside:
            inside_counter.inc(inside)
        if outside:
            outside_counter.inc(outside)

    def set_release(self, release_id: str, loaded_at_unix_s: float, previous: str) -> None:
        """Set the served release and clear the previous one, "" for none."""
        if previous:
            self.release.labels(previous).set(0)
        self.release.labels(release_id).set(1)
        self.release_loaded.set(loaded_at_unix_s)

    def _find_method_counters(self, method: str, code: str) -> tuple[Counter, Histogram, Histogram]:
        return (
            self._requests.labels(method, code),
            self._seconds.labels(method),
            self._rows.labels(method),
        )

    def _find_domain_counters(self, quantity: str) -> tuple[Counter, Counter]:
        return self._forecasts.labels(quantity, "true"), self._forecasts.labels(quantity, "false")


def serve_metrics(metrics: Metrics | None, host: str, port: int) -> Callable[[], None]:
    """Serve metrics over HTTP on a port of their own; return the function that stops it.

    Parameters
    ----------
    metrics : Metrics or None
        None serves the sums of the worker processes, from the folder they write to.

    Raises
    ------
    ServiceError
        The server cannot listen on the port.
    """
    if metrics is None:
        from prometheus_client import multiprocess

        registry = CollectorRegistry()
        folder = os.environ[MULTIPROCESS_DIR_VARIABLE]
        multiprocess.MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    else:
        from prometheus_client import gc_collector, platform_collector, process_collector

        registry = metrics.registry
        for collector in (gc_collector.GCCollector, platform_collector.PlatformCollector,
                          process_collector.ProcessCollector):  # fmt: skip
            collector(registry=registry)
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        return WsgiServer((address, port), make_wsgi_app(registry), limits=_LIMITS).stop
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"metrics cannot be served on port {port} of {host} ({error}); pass another "
            "--metrics-port"
        ) from error
