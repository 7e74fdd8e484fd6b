"""Spans: one for each accepted call, below the client's own span."""

from __future__ import annotations

import asyncio
import sys

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from presage.errors import InvalidJobError, ServiceError
from presage.serving.authentication.callers import Tokens
from presage.serving.server.call import Calls, no_span
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.tracing import ENDPOINTS, configured_span, make_span, resource
from tests.serving.support.aio_server import answering, ended
from tests.support.waiting import async_wait_until


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    made = TracerProvider(resource=resource())
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


async def later(request, _call):
    await asyncio.sleep(0.01)
    return request + b" " + trace.get_current_span().get_span_context().span_id.to_bytes(8)


async def slow(_request, _call):
    await asyncio.sleep(60)


async def each(requests, _call):
    async for request in requests:
        yield request


def refused(_request, _call):
    raise InvalidJobError("jobs[0].batch_size=0")


def serving(provider, slow=slow, **options):
    if "tokens" not in options:
        options["anonymous_roles"] = frozenset({"predict"})
    calls = Calls(Metrics(), span=make_span(provider), **options)
    handlers = {
        "Echo": calls.unary("Echo", "predict", lambda request, _call: request),
        "Later": calls.unary("Later", "predict", later),
        "Slow": calls.unary("Slow", "predict", slow),
        "Refused": calls.unary("Refused", "predict", refused),
        "Each": calls.stream("Each", "predict", each),
    }
    return answering(grpc.method_handlers_generic_handler("test.Service", handlers))


def test_every_call_has_a_span(provider, exporter):
    async def main():
        async with serving(provider) as channel:
            for method in ("Echo", "Later"):
                await channel.unary_unary(f"/test.Service/{method}")(b"")
            stream = channel.stream_stream("/test.Service/Each")(iter([b"a", b"b"]))
            assert [answer async for answer in stream] == [b"a", b"b"]

    asyncio.run(main())
    found = exporter.get_finished_spans()
    assert [span.name for span in found] == ["Echo", "Later", "Each"]
    for span in found:
        assert span.kind is SpanKind.SERVER
        assert span.parent is None
        assert dict(span.attributes) == {
            "rpc.system": "grpc", "rpc.method": span.name, "rpc.grpc.status_code": 0,
        }  # fmt: skip
        assert span.status.status_code is StatusCode.UNSET
        assert span.end_time >= span.start_time


@pytest.mark.parametrize("method", ["Echo", "Each"])
def test_a_clients_trace_is_continued(provider, exporter, method):
    async def main():
        async with serving(provider) as channel:
            carried: dict[str, str] = {}
            with provider.get_tracer("client").start_as_current_span("decide"):
                inject(carried)
            assert "traceparent" in carried
            metadata = [*carried.items(), ("x-other", "1"), ("x-bytes-bin", b"\xff")]
            if method == "Echo":
                await channel.unary_unary("/test.Service/Echo")(b"", metadata=metadata)
            else:
                call = channel.stream_stream("/test.Service/Each")(iter([b""]), metadata=metadata)
                assert [answer async for answer in call] == [b""]

    asyncio.run(main())
    client, server = exporter.get_finished_spans()
    assert server.context.trace_id == client.context.trace_id
    assert server.parent.span_id == client.context.span_id
    assert server.parent.is_remote


@pytest.mark.parametrize("sent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_invalid_trace_context_starts_a_new_trace(provider, exporter, sent):
    async def main():
        async with serving(provider) as channel:
            echo = channel.unary_unary("/test.Service/Echo")
            await echo(b"", metadata=[("traceparent", sent)])

    asyncio.run(main())
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert span.context.trace_id


def test_concurrent_calls_have_separate_spans(provider, exporter):
    async def main():
        async with serving(provider) as channel:
            ask = channel.unary_unary("/test.Service/Later")
            return await asyncio.gather(*(ask(str(i).encode()) for i in range(20)))

    answers = asyncio.run(main())
    ids = {answer.partition(b" ")[2] for answer in answers}
    assert ids == {span.context.span_id.to_bytes(8) for span in exporter.get_finished_spans()}
    assert len(ids) == 20


def test_spans_of_rejected_and_cancelled_calls_end(provider, exporter, caplog):
    begun = []

    async def begins(request, call):
        begun.append(1)
        return await slow(request, call)

    async def main():
        async with serving(provider, slow=begins) as channel:
            await ended(channel.unary_unary("/test.Service/Refused")(b""))
            call = channel.unary_unary("/test.Service/Slow")(b"")
            await async_wait_until(lambda: begun)
            call.cancel()
            stream = channel.stream_stream("/test.Service/Each")()
            await stream.write(b"a")
            assert await stream.read() == b"a"
            stream.cancel()
            await async_wait_until(lambda: len(exporter.get_finished_spans()) == 3)

    asyncio.run(main())
    refused, *cancelled = exporter.get_finished_spans()
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.status.description == "InvalidJobError: jobs[0].batch_size=0"
    assert {span.name for span in cancelled} == {"Slow", "Each"}
    (of_slow,) = (span for span in cancelled if span.name == "Slow")
    codes = [span.attributes["rpc.grpc.status_code"] for span in (refused, of_slow)]
    assert codes == [3, 1]  # INVALID_ARGUMENT, CANCELLED
    assert not [row for row in caplog.records if row.name.startswith("opentelemetry")]


def test_an_unauthenticated_call_has_no_span(provider, exporter):
    async def main():
        async with serving(provider, tokens=lambda: Tokens({})) as channel:
            metadata = [("authorization", "Bearer s3cret")]
            await ended(channel.unary_unary("/test.Service/Echo")(b"", metadata=metadata))

    asyncio.run(main())
    assert exporter.get_finished_spans() == ()


# What the environment says ---------------------------------------------------------------------


@pytest.fixture
def unset(monkeypatch):
    for name in (*ENDPOINTS, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_tracing_is_off_without_an_endpoint_in_the_environment(unset):
    assert configured_span() is no_span
    unset.setenv(ENDPOINTS[0], "")
    assert configured_span() is no_span


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_error_names_missing_packages(unset, name):
    unset.setenv(name, "http://127.0.0.1:4318")
    unset.setitem(sys.modules, "opentelemetry.exporter", None)

    with pytest.raises(ServiceError, match=rf"^{name} is set, .*pip install 'presage\[otel\]'"):
        configured_span()


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "presage"),
        ({"OTEL_SERVICE_NAME": "presage-a"}, "presage-a"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b,cluster=c"}, "b"),
    ],
)
def test_the_environment_sets_the_service_name(unset, variables, name):
    for key, value in variables.items():
        unset.setenv(key, value)

    attributes = resource().attributes
    assert attributes["service.name"] == name
    assert attributes["telemetry.sdk.language"] == "python"
    assert attributes.get("cluster") == ("c" if name == "b" else None)
