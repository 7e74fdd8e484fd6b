"""OpenTelemetry spans, one for each call, where the optional packages are installed.

``pip install 'presage[otel]'`` and OTEL_EXPORTER_OTLP_ENDPOINT turn them on, as the standard's own
environment variables say; a caller's ``traceparent`` is gone on from.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

from presage.features.errors import ServiceError
from presage.serving.call import Span, no_span

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def spans() -> Span:
    """Spans sent where the environment says; none where it says nothing.

    Raises
    ------
    ServiceError
        It says where, and the packages are not there.
    """
    if not os.environ.get(ENDPOINT):
        return no_span
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"{ENDPOINT} is set, and {error.name} is not installed; pip install 'presage[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "presage"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return spans_of(provider)


def spans_of(provider: Any) -> Span:
    """Spans of an OpenTelemetry ``TracerProvider``."""
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    tracer = provider.get_tracer("presage.serving")

    def span(method: str, context: Any) -> AbstractContextManager[Any]:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in {"traceparent", "tracestate"}
        }
        attributes = {"rpc.system": "grpc", "rpc.method": method}
        started: AbstractContextManager[Any] = tracer.start_as_current_span(
            method, context=extract(metadata), kind=SpanKind.SERVER, attributes=attributes
        )
        return started

    return span
