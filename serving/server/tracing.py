"""OpenTelemetry spans: one per admitted call.

``pip install 'presage[otel]'`` and the environment variable OTEL_EXPORTER_OTLP_ENDPOINT enable
them; the standard's other environment variables apply. The span of a call is a child of the
caller's ``traceparent``.
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


def configured_span() -> Span:
    """Return spans for the endpoint in the environment; no spans without an endpoint.

    Raises
    ------
    ServiceError
        An endpoint is set and the packages are not installed.
    """
    provider = configured_provider()
    return no_span if provider is None else make_span(provider)


def configured_provider(service: str = "presage") -> Any | None:
    """Return a tracer provider for the endpoint in the environment; None without an endpoint.

    Parameters
    ----------
    service : str
        Name of the service, unless the environment sets another.

    Raises
    ------
    ServiceError
        An endpoint is set and the packages are not installed.
    """
    endpoints = [name for name in ENDPOINTS if os.environ.get(name)]
    if not endpoints:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"{endpoints[0]} is set, but {error.name} is not installed; pip install 'presage[otel]'"
        ) from error
    provider = TracerProvider(resource=resource(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def resource(service: str = "presage") -> Any:
    """Return the OpenTelemetry resource of a service, unless the environment names another."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())


def make_span(provider: Any) -> Span:
    """Return the context manager for spans of an OpenTelemetry ``TracerProvider``."""
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
    is_cancelled = not isinstance(error, Exception) or isinstance(error, grpc.aio.BaseError)
    return grpc.StatusCode.CANCELLED if is_cancelled else grpc.StatusCode.INTERNAL
