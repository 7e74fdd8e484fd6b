"""W3C trace context of the current span, without importing OpenTelemetry."""

from __future__ import annotations

import os
import re
import sys

TRACEPARENT = "traceparent"
_FORMAT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def current_traceparent() -> str:
    """Return the trace context of the current span; "" without one.

    A program that has a span has imported OpenTelemetry, so nothing is imported otherwise.
    """
    if "opentelemetry.trace" not in sys.modules:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT, "")


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Return gRPC metadata with the trace context of a client.

    It is that of the current span, or else of the environment variable ``TRACEPARENT``, which CI
    systems and shells set.
    """
    value = current_traceparent() or os.environ.get("TRACEPARENT", "")
    return ((TRACEPARENT, value),) if _FORMAT.fullmatch(value) else ()
