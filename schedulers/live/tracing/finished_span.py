"""Spans that are recorded when they have ended, below a trace context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def record_span(
    tracer: Any,
    name: str,
    traceparent: str,
    *,
    begin_ns: int,
    end_ns: int,
    attributes: Mapping[str, str | int | float],
    error: str = "",
) -> None:
    """Record a span that has ended.

    Parameters
    ----------
    tracer : opentelemetry.trace.Tracer
    traceparent : str
        W3C trace context of its parent.
    begin_ns, end_ns : int
        Nanoseconds since 1970.
    attributes : mapping
    error : str
        Why it failed; "" if it did not.
    """
    from opentelemetry.trace import Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    span = tracer.start_span(
        name, context=parent, start_time=min(begin_ns, end_ns), attributes=attributes
    )
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_ns)
