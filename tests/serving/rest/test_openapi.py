"""The OpenAPI document: valid, up to date, and true of real requests and responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from jsonschema import Draft202012Validator

import presage
from presage.features.columns.schema import columns, schema_hash
from presage.serving.codec import wire_values
from presage.serving.rest import openapi
from presage.serving.rest.routes import ROUTES
from presage.serving.v1 import prediction_pb2 as pb
from tests.serving.rest.http_client import ask, of_owner

DOCUMENT: dict[str, Any] = json.loads(openapi.DOCUMENT.read_text())


def schema_of(name: str) -> Draft202012Validator:
    """Return a validator of a schema of the document."""
    return Draft202012Validator({**DOCUMENT, "$ref": f"#/components/schemas/{name}"})


def test_the_committed_document_is_that_of_the_protocol():
    pytest.importorskip("grpc_tools")
    source = Path(presage.__file__).parents[1]

    assert openapi.DOCUMENT.read_text() == openapi.text(source), (
        "run python -m presage.serving.rest.openapi"
    )


def test_it_is_an_openapi_document():
    models = pytest.importorskip("fastapi.openapi.models")  # of the specification 3.1

    parsed = models.OpenAPI.model_validate(DOCUMENT)

    assert parsed.openapi == "3.1.1"
    assert not parsed.model_extra


def test_its_schemas_are_valid_and_every_reference_exists():
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)

    found = 0
    for reference in references(DOCUMENT):
        here = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            here = here[part]
        found += 1
    assert found > 50


def references(node: Any):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_field_and_message_is_described():
    for route in ROUTES:
        assert DOCUMENT["paths"][route.path][route.verb.lower()]["operationId"] == route.method
    job = DOCUMENT["components"]["schemas"]["Job"]
    assert set(job["properties"]) == set(pb.Job.DESCRIPTOR.fields_by_camelcase_name)
    assert "samples in one step" in job["properties"]["batchSize"]["description"]
    assert job["description"].startswith("A deep-learning job.")


def test_the_served_document_is_the_committed_one(rest):
    assert ask(rest, "GET", "/openapi.json").body == openapi.DOCUMENT.read_bytes()


@pytest.fixture
def requests(predict_request, job):
    """Requests by the name of their method."""
    one = wire_values.write_job(job())
    rows = np.ones((2, len(columns("full"))), dtype="<f4")
    return {
        "Predict": predict_request(),
        "PredictInterference": pb.PredictInterferenceRequest(
            jobs=[one], devices=[pb.Device(kind="cpu-2")], levels=[0.9],
            colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)],
        ),
        "PredictScaling": pb.PredictScalingRequest(
            job=one, device=pb.Device(kind="v100"), placements=[pb.GpuPlacement(gpus=2)]
        ),
        "PredictMatrix": pb.PredictMatrixRequest(
            schema_hash=schema_hash("full"), features=rows.tobytes(), device_kinds=["cpu-2"],
            precisions=["FP32", "BF16"],
        ),
        "ReportOutcomes": pb.ReportOutcomesRequest(outcomes=[
            pb.Outcome(
                job=one, device=pb.Device(kind=kind), finished_at_unix_s=1.7e9, runtime_s=1.5,
                idempotency_key=f"openapi-{kind}",
            )
            for kind in ("cpu-2", "no-such-device")
        ]),
        "GetRelease": pb.GetReleaseRequest(),
        "Reload": pb.ReloadRequest(),
    }  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.method)
def test_real_requests_and_responses_match_their_schemas(rest, requests, route):
    request = requests[route.method]
    sent = json_format.MessageToDict(request)
    body = None if route.verb == "GET" else json.dumps(sent)

    answer = ask(rest, route.verb, route.path, body, headers=of_owner(rest))

    assert answer.status == 200, answer.body
    schema_of(route.descriptor.input_type.name).validate(sent)
    schema_of(route.descriptor.output_type.name).validate(answer.json)


def test_real_problems_match_their_schema(rest):
    for answer in (ask(rest, "POST", "/v1/predict", "{"), ask(rest, "GET", "/nothing")):
        schema_of("Problem").validate(answer.json)


def test_a_schema_rejects_another_type_and_an_unknown_field():
    validator = schema_of("PredictRequest")

    assert validator.is_valid({"coverage": 0.8, "jobs": [{"batchSize": "32", "iterations": 5}]})
    assert validator.is_valid({"coverage": "NaN"})
    wrong: Any
    for wrong in ({"coverage": "high"}, {"jobz": []}, {"jobs": [{"batchSize": 1.5}]}, {"jobs": {}}):
        assert not validator.is_valid(wrong)
