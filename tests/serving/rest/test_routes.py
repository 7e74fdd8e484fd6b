"""Every route answers as its gRPC method does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from presage.errors import InvalidRequestError
from presage.features.columns.schema import columns, schema_hash
from presage.serving.codec import wire_values
from presage.serving.rest.routes import ROUTES, SERVICE, query_as_json
from presage.serving.v1 import prediction_pb2 as pb
from tests.serving.rest.http_client import ask, connect, of_owner, send
from tests.serving.support.processes import own_metadata


def test_every_unary_method_has_one_route():
    unary = {
        method.name
        for method in SERVICE.methods
        if not method.client_streaming and not method.server_streaming
    }

    assert {route.method for route in ROUTES} == unary
    assert len({(route.verb, route.path) for route in ROUTES}) == len(ROUTES) == len(unary)


def test_predict(rest, stub, predict_request):
    request = predict_request()

    answer = ask(rest, "POST", "/v1/predict", request)

    assert answer.message(pb.PredictResponse) == stub.Predict(request, timeout=5)
    assert answer.headers["Content-Type"] == "application/json"


def test_false_and_zero_are_visible(rest, predict_request):
    rows = ask(rest, "POST", "/v1/predict", predict_request(1)).json["forecasts"]

    assert [row["memoryBytes"]["inDomain"] for row in rows] == [True, False]
    assert rows[0]["memoryBytes"]["domainErrorRatio"] == 0.0
    assert "error" not in rows[0]
    assert "correction" not in rows[0]["memoryBytes"]


def test_names_of_the_proto_file_are_accepted(rest, stub, predict_request):
    request = predict_request()
    text = json_format.MessageToJson(request, preserving_proto_field_name=True)
    assert "batch_size" in text

    answer = ask(rest, "POST", "/v1/predict", text)

    assert answer.message(pb.PredictResponse) == stub.Predict(request, timeout=5)


def test_a_large_request_and_its_response_are_converted_in_threads(rest, stub, predict_request):
    request = predict_request(100)

    answer = ask(rest, "POST", "/v1/predict", request)

    assert len(json_format.MessageToJson(request)) > 32_000
    assert answer.message(pb.PredictResponse) == stub.Predict(request, timeout=5)


def test_a_row_with_an_error_is_in_the_response(rest, stub, predict_request):
    request = predict_request()
    request.jobs[0].batch_size = 0

    answer = ask(rest, "POST", "/v1/predict", request)

    assert answer.message(pb.PredictResponse) == stub.Predict(request, timeout=5)
    assert answer.json["forecasts"][0]["error"]["grpcStatusCode"] == 3


def test_predict_interference(rest, stub, job):
    request = pb.PredictInterferenceRequest(
        jobs=[wire_values.write_job(job())],
        devices=[pb.Device(kind="cpu-2")],
        colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)],
    )

    answer = ask(rest, "POST", "/v1/predict-interference", request)

    assert answer.message(pb.PredictInterferenceResponse) == stub.PredictInterference(
        request, timeout=5
    )


def test_predict_scaling(rest, stub, job):
    request = pb.PredictScalingRequest(
        job=wire_values.write_job(job()),
        device=pb.Device(kind="v100"),
        placements=[pb.GpuPlacement(gpus=2), pb.GpuPlacement(gpus=8, nodes=2)],
    )

    answer = ask(rest, "POST", "/v1/predict-scaling", request)

    assert answer.message(pb.PredictScalingResponse) == stub.PredictScaling(request, timeout=5)


def test_predict_matrix(rest, stub):
    rows = np.ones((3, len(columns("full"))), dtype="<f4")
    request = pb.PredictMatrixRequest(
        schema_hash=schema_hash("full"), features=rows.tobytes(), device_kinds=["cpu-2"],
        precisions=["FP32"] * 3,
    )  # fmt: skip

    answer = ask(rest, "POST", "/v1/predict-matrix", request)

    assert answer.message(pb.PredictMatrixResponse) == stub.PredictMatrix(request, timeout=5)


def test_report_outcomes(rest, stub, job):
    outcome = pb.Outcome(
        job=wire_values.write_job(job()), device=pb.Device(kind="cpu-2"),
        finished_at_unix_s=1.7e9, runtime_s=12.5, idempotency_key="rest-1",
    )  # fmt: skip
    request = pb.ReportOutcomesRequest(outcomes=[outcome])

    answer = ask(rest, "POST", "/v1/outcomes", request, headers=of_owner(rest))
    again = stub.ReportOutcomes(request, timeout=5, metadata=own_metadata(rest))

    assert answer.json == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert (again.accepted, again.duplicates) == (0, 1)


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("", []),
        ("?deviceKinds=h200", ["h200"]),
        ("?device_kinds=h200&device_kinds=cpu-2", ["h200", "cpu-2"]),
    ],
)
def test_get_release(rest, stub, query, kinds):
    answer = ask(rest, "GET", f"/v1/release{query}")

    expected = stub.GetRelease(pb.GetReleaseRequest(device_kinds=kinds), timeout=5)
    assert answer.message(pb.GetReleaseResponse) == expected


def test_reload(rest, stub):
    answer = ask(rest, "POST", "/v1/reload", headers=of_owner(rest))

    expected = stub.Reload(pb.ReloadRequest(), timeout=5, metadata=own_metadata(rest))
    assert answer.message(pb.GetReleaseResponse) == expected


def test_head_has_the_headers_of_get(rest):
    connection = connect(rest)
    head = send(connection, "HEAD", "/v1/release")
    get = send(connection, "GET", "/v1/release")
    connection.close()

    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(get.body))


def test_health_and_the_document_need_no_token(rest):
    health, document = ask(rest, "GET", "/v1/health"), ask(rest, "GET", "/openapi.json")

    assert (health.status, health.json) == (200, {"status": "SERVING"})
    assert document.json["openapi"].startswith("3.1")


def test_calls_are_counted_by_method_and_responses_by_status(rest, predict_request):
    def value(name, **labels):
        return rest.metrics.registry.get_sample_value(name, labels) or 0

    before = value("presage_requests_total", method="Predict", code="OK")
    not_found = value("presage_http_responses_total", status="404")

    ask(rest, "POST", "/v1/predict", predict_request())
    ask(rest, "GET", "/v2")

    assert value("presage_requests_total", method="Predict", code="OK") == before + 1
    assert value("presage_http_responses_total", status="404") == not_found + 1


def test_an_equal_request_is_answered_from_the_cache(rest, predict_request):
    request = predict_request(1)
    request.jobs[0].job_id = "cached"
    first = ask(rest, "POST", "/v1/predict", request)
    hits = rest.metrics.registry.get_sample_value("presage_response_cache_hits_total")

    assert ask(rest, "POST", "/v1/predict", request).json == first.json
    assert rest.metrics.registry.get_sample_value("presage_response_cache_hits_total") == hits + 1


def test_a_query_is_the_json_of_a_message():
    message: Any = pb.GetReleaseRequest.DESCRIPTOR
    scalar: Any = pb.PredictScalingResponse.DESCRIPTOR

    assert json.loads(query_as_json("deviceKinds=a%20b&deviceKinds=", message)) == {
        "deviceKinds": ["a b", ""]
    }
    assert json.loads(query_as_json("releaseId=x", scalar)) == {"releaseId": "x"}
    for query in ("releaseId=x&releaseId=y", "releaseId", "a=%FF", "&"):
        with pytest.raises(InvalidRequestError):
            query_as_json(query, scalar)
