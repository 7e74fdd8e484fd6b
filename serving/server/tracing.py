"""OpenTelemetry spans, one for each call that is let in, where the packages for it are installed.

``pip install 'presage[otel]'`` and OTEL_EXPORTER_OTLP_ENDPOINT turn them on, as the standard's own
environment variables say; a caller's ``traceparent`` is gone on from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from presage.errors import PresageError, ServiceError
from presage.serving.server.call import Span, no_span, status_of

STATUS_CODE = "rpc.grpc.status_code"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def spans() -> Span:
    """Spans sent where the environment says; none where it says nothing.

    Raises
    ------
    ServiceError
        It says where, and the packages are not there.
    """
    told = [name for name in ENDPOINTS if os.environ.get(name)]
    if not told:
        return no_span
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"{told[0]} is set, and {error.name} is not installed; pip install 'presage[otel]'"
        ) from error
    provider = TracerProvider(resource=resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return spans_of(provider)


def resource() -> Any:
    """What spans say that they are of: of presage, unless the environment names it otherwise."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create({"service.name": "presage"}).merge(OTELResourceDetector().detect())


def spans_of(provider: Any) -> Span:
    """Spans of an OpenTelemetry ``TracerProvider``."""
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    tracer = provider.get_tracer("presage.serving")

    @contextmanager
    def span(method: str, context: Any) -> Iterator[None]:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in {"traceparent", "tracestate"}
        }
        attributes = {"rpc.system": "grpc", "rpc.method": method}
        with tracer.start_as_current_span(
            method, context=extract(metadata), kind=SpanKind.SERVER, attributes=attributes
        ) as started:
            code = grpc.StatusCode.OK
            try:
                yield
            except BaseException as error:
                code = _code_of(error)
                raise
            finally:
                started.set_attribute(STATUS_CODE, code.value[0])

    return span


def _code_of(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, PresageError):
        return status_of(error)
    over = not isinstance(error, Exception) or isinstance(error, grpc.aio.BaseError)
    return grpc.StatusCode.CANCELLED if over else grpc.StatusCode.INTERNAL
