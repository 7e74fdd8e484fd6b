"""Trace context that clients send."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider

from presage.serving.client.trace_context import current_traceparent, trace_metadata

VALUE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("TRACEPARENT", raising=False)


def test_the_context_is_of_the_current_span_else_of_the_environment(monkeypatch):
    assert trace_metadata() == ()
    monkeypatch.setenv("TRACEPARENT", VALUE)
    assert trace_metadata() == (("traceparent", VALUE),)
    with TracerProvider().get_tracer("t").start_as_current_span("own") as span:
        trace_id = f"{span.get_span_context().trace_id:032x}"
        assert trace_id in current_traceparent()
        assert trace_metadata() == (("traceparent", current_traceparent()),)
    assert current_traceparent() == ""


@pytest.mark.parametrize("value", ["", "nonsense", VALUE + "\n", VALUE.upper(), VALUE + "-1"])
def test_an_invalid_value_of_the_environment_is_not_sent(monkeypatch, value):
    monkeypatch.setenv("TRACEPARENT", value)
    assert trace_metadata() == ()


def test_opentelemetry_is_imported_only_with_an_endpoint():
    code = (
        "import sys\n"
        "import presage.schedulers.live.agent.agent\n"
        "import presage.schedulers.live.client.client\n"
        "import presage.schedulers.live.tracing.job_spans\n"
        "from presage.serving.client.trace_context import trace_metadata\n"
        "from presage.serving.server.tracing import configured_provider\n"
        "assert trace_metadata() == () and configured_provider() is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
    )  # fmt: skip
    assert done.stdout == "[]\n"
