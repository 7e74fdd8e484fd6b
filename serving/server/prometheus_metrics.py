"""What a server counts, for Prometheus.

Several worker processes count into files of one folder (prometheus_client's multiprocess mode,
which PROMETHEUS_MULTIPROC_DIR turns on), and their parent shows the sums.
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

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Measured over forecast: a tenth off, a fifth off, and so on to either side.
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4)


class Metrics:
    """The counters of one server; each has its meaning beside it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add: dict[str, Any] = {"registry": self.registry, "namespace": "presage"}
        self._requests = Counter(
            "requests", "Calls that ended, by method and gRPC status", ["method", "code"], **add
        )
        self._seconds = Histogram(
            "request_seconds", "From a call's arrival to its end", ["method"], buckets=_SECONDS,
            **add,
        )  # fmt: skip
        self._rows = Histogram(
            "request_rows", "Placements, members, feature rows or outcomes of a call", ["method"],
            buckets=_ROWS, **add,
        )  # fmt: skip
        self.repeated = Counter(
            "repeated", "Requests whose very bytes were answered before, and so again", **add
        )
        self.unlogged = Counter(
            "unlogged_calls", "Lines of the access log that nobody read in time", **add
        )
        self.rejections = Counter(
            "rejections", "Calls that were refused unread, by why", ["reason"], **add
        )
        self.queue_rows = Gauge(
            "queue_rows", "Rows of large requests that wait or are worked on",
            multiprocess_mode="livesum", **add,
        )  # fmt: skip
        self.streams = Gauge(
            "streams", "PredictStream calls that are open", multiprocess_mode="livesum", **add
        )
        self._forecasts = Counter(
            "forecasts", "Forecasts given, by whether the release vouches for them",
            ["quantity", "in_domain"], **add,
        )  # fmt: skip
        self.release = Gauge(
            "release", "1 for the release that is served, 0 for those before it", ["release_id"],
            multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.release_loaded = Gauge(
            "release_loaded_timestamp_seconds", "When the served release was loaded",
            multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.releases_refused = Counter(
            "releases_refused", "Releases that were to be served and are not", **add
        )
        self.outcomes = Counter(
            "outcomes", "Outcomes reported, by what became of them", ["result"], **add
        )
        self.outcome_ratio = Histogram(
            "outcome_ratio", "Measured over forecast median, of outcomes in domain", ["quantity"],
            buckets=_RATIOS, **add,
        )  # fmt: skip
        self.outcome_inside = Counter(
            "outcome_inside", "Outcomes in domain, by whether in the 80 % interval of the forecast",
            ["quantity", "inside"], **add,
        )  # fmt: skip
        self.drift = Gauge(
            "drift", "1 where outcomes are certain to be others than the served release promised",
            ["quantity", "slice"], multiprocess_mode="livemax", **add,
        )  # fmt: skip
        self.drift_evidence = Gauge(
            "drift_evidence", "Evidence that outcomes are others than promised; 1 is certain",
            ["quantity", "slice"], multiprocess_mode="livemax", **add,
        )  # fmt: skip
        # Finding a label's counter costs as much as counting; methods and codes are few.
        self._of_method = cache(self._counters)
        self._of_quantity = cache(self._domain_counters)

    def count_call(self, method: str, code: str, seconds: float, rows: int) -> None:
        """Count a call that has ended."""
        ended, took_s, of_rows = self._of_method(method, code)
        ended.inc()
        took_s.observe(seconds)
        if rows:
            of_rows.observe(rows)

    def count_domain(self, quantity: str, inside: int, outside: int) -> None:
        """Count forecasts by whether the release vouches for them."""
        of_inside, of_outside = self._of_quantity(quantity)
        if inside:
            of_inside.inc(inside)
        if outside:
            of_outside.inc(outside)

    def count_release(self, release_id: str, loaded_at_unix_s: float, before: str) -> None:
        """Count a release that is served from now on."""
        if before:
            self.release.labels(before).set(0)
        self.release.labels(release_id).set(1)
        self.release_loaded.set(loaded_at_unix_s)

    def _counters(self, method: str, code: str) -> tuple[Counter, Histogram, Histogram]:
        return (
            self._requests.labels(method, code),
            self._seconds.labels(method),
            self._rows.labels(method),
        )

    def _domain_counters(self, quantity: str) -> tuple[Counter, Counter]:
        return self._forecasts.labels(quantity, "true"), self._forecasts.labels(quantity, "false")


def show_metrics(metrics: Metrics | None, host: str, port: int) -> Callable[[], None]:
    """Answer Prometheus on a port of its own; return the function that ends it.

    ``metrics`` None shows the sums of the worker processes, from the folder they count into.

    Raises
    ------
    ServiceError
        The port cannot be listened on.
    """
    if metrics is None:
        from prometheus_client import multiprocess

        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, os.environ[MULTIPROCESS])  # type: ignore[no-untyped-call]
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
            f"metrics cannot be shown on port {port} of {host} ({error}); pass another "
            "--metrics-port"
        ) from error
