"""Traces and notifications of a live cluster of processes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import ENVIRONMENT, LiveCluster, until
from tests.system.notifications.receiver import receiver

# In place of the package opentelemetry-exporter-otlp-proto-http, which tests do not need.
EXPORTER = """
import os
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

class OTLPSpanExporter(ConsoleSpanExporter):
    def __init__(self):
        path = f"{os.environ['SPANS']}/{os.getpid()}.jsonl"
        super().__init__(out=open(path, "a"), formatter=lambda span: span.to_json(None) + "\\n")
"""


def stand_in(folder: Path) -> dict[str, str]:
    """Return the environment of processes that write their spans to ``folder``."""
    module = folder / "path/opentelemetry/exporter/otlp/proto/http/trace_exporter.py"
    module.parent.mkdir(parents=True)
    module.write_text(EXPORTER)
    return {
        "PYTHONPATH": f"{folder / 'path'}:{ENVIRONMENT['PYTHONPATH']}",
        "SPANS": str(folder),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def exported(folder: Path) -> list[dict[str, Any]]:
    """Return the spans of all processes."""
    files = (path.read_text() for path in folder.glob("*.jsonl"))
    return [json.loads(line) for text in files for line in text.splitlines() if line[-1:] == "}"]


def of_job(folder: Path, job: str) -> dict[str, dict[str, Any]]:
    """Return the spans of a job, by service and name."""
    return {
        f"{span['resource']['attributes']['service.name']} {span['name']}": span
        for span in exported(folder)
        if span["attributes"].get("presage.job") == job
    }


def has_spans(folder: Path, job: str, names: set[str]) -> bool:
    """Return whether exactly these spans of a job were exported."""
    return of_job(folder, job).keys() == names


def test_a_job_is_one_trace_and_a_node_that_fails_and_returns_two_events(tmp_path: Path):
    names = {"presage-controller decide", "presage-agent start", "presage-controller run"}
    with receiver() as hook:
        cluster = LiveCluster(tmp_path, lease_s=3.0)
        cluster.environment = {**stand_in(tmp_path), "PRESAGE_WEBHOOK": hook.url}
        try:
            cluster.up("n0")
            with TracerProvider().get_tracer("t").start_as_current_span("train") as own:
                cluster.submit(cluster.job("traced", 3))
            cluster.submit(cluster.job("another", 1))
            assert set(cluster.over("traced", "another").values()) == {pb.FINISHED}
            for job in ("traced", "another"):
                until(partial(has_spans, tmp_path, job, names))
            cluster.kill("n0")
            until(lambda: hook.types == ["presage.node.failed"], what=lambda: hook.types)
            cluster.agent("n0")
            until(lambda: len(hook.types) == 2, what=lambda: hook.types)
        finally:
            cluster.close()

    assert hook.types == ["presage.node.failed", "presage.node.back"]
    assert [event["subject"] for event in hook.events] == ["n0", "n0"]
    assert hook.events[0]["source"] == hook.events[1]["source"]
    _check_trace(tmp_path, own.get_span_context())


def _check_trace(folder: Path, own: Any) -> None:
    spans, another = of_job(folder, "traced"), of_job(folder, "another")
    (submit,) = (
        one
        for one in exported(folder)
        if one["name"] == "Submit" and one["parent_id"] == f"0x{own.span_id:016x}"
    )
    assert {one["context"]["trace_id"] for one in spans.values()} == {f"0x{own.trace_id:032x}"}
    assert {one["parent_id"] for one in spans.values()} == {submit["context"]["span_id"]}
    assert f"0x{own.trace_id:032x}" not in {one["context"]["trace_id"] for one in another.values()}
    assert len({one["context"]["trace_id"] for one in another.values()}) == 1
    assert spans["presage-agent start"]["attributes"]["presage.node"] == "n0"
    assert spans["presage-controller decide"]["attributes"]["presage.nodes"] == "n0"
    assert spans["presage-controller run"]["attributes"]["presage.stage"] == "finished"
    ends = [one["end_time"] for one in (spans[name] for name in sorted(spans, key=_order))]
    assert ends == sorted(ends)
    assert not {"Attach", "Watch"} & {one["name"] for one in exported(folder)}


def _order(name: str) -> int:
    return ("decide", "start", "run").index(name.split()[1])


def test_an_invalid_webhook_is_an_error_of_one_line_at_the_start(cluster):
    cluster.environment = {"PRESAGE_WEBHOOK": "alerts.example.org/hunter2"}
    assert cluster.controller().wait(60) == 1
    text = cluster.log("controller").read_text()
    assert text.startswith("error: PRESAGE_WEBHOOK is no http:// or https:// URL")
    assert text.count("\n") == 1
    assert "hunter2" not in text
