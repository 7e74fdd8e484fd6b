"""Rejected requests: the HTTP status and problem details of each class of error."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import grpc
import pytest

from presage.errors import OutcomeLogError
from presage.serving.predictor.release_follower import FolderSource
from presage.serving.rest.problem import HTTP_STATUS, problem
from presage.serving.server.call import STATUS
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.server import Server
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from tests.serving.rest.http_client import JSON, ask, bearer, of_owner
from tests.serving.support.running_server import server_loop, start_server


def check(answer, status, grpc_status=None):
    """Check a problem and return its details."""
    found = answer.json
    assert answer.status == found["status"] == status, found
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert found.get("grpcStatus") == grpc_status
    assert found["type"] == "about:blank"
    assert found["title"]
    assert answer.headers.get("X-Request-Id") == found.get("requestId")
    return found["detail"]


def test_every_status_of_grpc_has_a_status_of_http():
    assert HTTP_STATUS.keys() == set(grpc.StatusCode)
    assert all(HTTP_STATUS[code] >= 400 for code in STATUS.values())


def test_a_problem_has_the_members_of_rfc_9457():
    found = json.loads(problem(HTTP_STATUS[grpc.StatusCode.NOT_FOUND], "no such thing\n"))

    assert found == {
        "type": "about:blank", "title": "Not Found", "status": 404, "detail": "no such thing\n"
    }  # fmt: skip


# Of the request itself -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/predict/", "/v2/health/live", "/v1/PREDICT"])
def test_an_unknown_path(rest, path):
    assert "unknown path" in check(ask(rest, "GET", path), 404)


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/v1/predict", "POST"),
        ("HEAD", "/v1/predict", "POST"),
        ("OPTIONS", "/v1/predict", "POST"),
        ("DELETE", "/v1/outcomes", "POST"),
        ("POST", "/v1/release", "GET, HEAD"),
        ("PUT", "/v1/health", "GET, HEAD"),
    ],
)
def test_another_method(rest, verb, path, allowed):
    answer = ask(rest, verb, path)

    assert (answer.status, answer.headers["Allow"]) == (405, allowed)
    if verb != "HEAD":
        check(answer, 405)


def test_a_method_that_http_does_not_know(rest):
    check(ask(rest, "BREW", "/v1/predict"), 501)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        JSON | {"Content-Encoding": "gzip"},
    ],
)
def test_another_content_type(rest, headers):
    assert "send" in check(ask(rest, "POST", "/v1/predict", "{}", headers=headers), 415)


def test_a_content_type_may_have_parameters(rest):
    headers = {"Content-Type": "application/json; charset=utf-8"}

    check(ask(rest, "POST", "/v1/predict", "{}", headers=headers), 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("{", "the body is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"jobz": []}', "unknown field"),
        ('{"coverage": NaN}', "coverage is not a number of JSON"),
        ('{"jobs":' * 50_000, "nested too deeply"),
        ('{"jobs": [{}]}', "devices has 0 entries"),
        ("", "jobs has 0 entries"),
    ],
)
def test_an_invalid_body(rest, body, detail):
    answer = ask(rest, "POST", "/v1/predict", body)

    assert detail in check(answer, 400, "INVALID_ARGUMENT")


def test_nan_in_a_string_is_rejected_as_grpc_rejects_it(rest, stub, predict_request):
    request = predict_request(1)
    request.jobs[0].op_stats[0].flops = float("nan")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(request, timeout=5)

    detail = check(ask(rest, "POST", "/v1/predict", request), 400, "INVALID_ARGUMENT")

    assert detail == caught.value.details()


@pytest.mark.parametrize("query", ["?deviceKind=h200", "?deviceKinds", "?%FF=1"])
def test_an_invalid_query(rest, query):
    check(ask(rest, "GET", f"/v1/release{query}"), 400, "INVALID_ARGUMENT")


def test_a_query_beside_a_body(rest):
    check(ask(rest, "POST", "/v1/predict?coverage=0.9", "{}"), 400, "INVALID_ARGUMENT")


# Of the call -----------------------------------------------------------------------------------


def test_an_unknown_device(rest, stub, predict_request):
    request = predict_request(1)
    del request.devices[:]
    request.devices.add(kind="h20")

    detail = check(ask(rest, "POST", "/v1/predict", request), 404, "NOT_FOUND")

    assert "did you mean 'h200'" in detail


def test_rows_of_another_schema(rest):
    request = pb.PredictMatrixRequest(schema_hash="old", features=bytes(4), device_kinds=["v100"])

    check(ask(rest, "POST", "/v1/predict-matrix", request), 400, "FAILED_PRECONDITION")


def test_a_missing_token(rest):
    answer = ask(rest, "POST", "/v1/reload")

    check(answer, 401, "UNAUTHENTICATED")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="presage"'


def test_an_unknown_token(rest):
    check(ask(rest, "GET", "/v1/release", headers=bearer("guessed")), 401, "UNAUTHENTICATED")


def test_a_server_without_an_outcome_log(release):
    with start_server(release, Options(port=0, http_port=0)) as server:
        answer = ask(server, "POST", "/v1/outcomes", "{}", headers=of_owner(server))
        check(answer, 503, "UNAVAILABLE")


def test_a_client_above_its_rate(release, predict_request):
    with start_server(release, Options(port=0, http_port=0, rows_per_s=1.0)) as server:
        assert ask(server, "POST", "/v1/predict", predict_request()).status == 200
        answer = ask(server, "POST", "/v1/predict", predict_request())

    assert "1 rows per second" in check(answer, 429, "RESOURCE_EXHAUSTED")
    assert int(answer.headers["Retry-After"]) >= 1


def test_the_rate_is_that_of_http_and_grpc_together(release, predict_request):
    with start_server(release, Options(port=0, http_port=0, rows_per_s=1.0)) as server:
        with grpc.insecure_channel(server.target) as channel:
            predict: Any = channel.unary_unary("/presage.v1.PredictionService/Predict")
            predict(predict_request().SerializeToString(), timeout=5)
        check(ask(server, "POST", "/v1/predict", predict_request()), 429, "RESOURCE_EXHAUSTED")


def test_an_internal_error_does_not_leave_the_server(rest, monkeypatch, predict_request):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a detail of the server")

    monkeypatch.setattr("presage.serving.codec.wire_requests.count_predict", fail)
    request = predict_request(1)
    request.jobs[0].job_id = "internal"

    detail = check(ask(rest, "POST", "/v1/predict", request), 500, "INTERNAL")

    assert "a detail of the server" not in detail


def test_an_unavailable_outcome_log(rest, monkeypatch):
    def fail(*_: object) -> None:
        raise OutcomeLogError("disk full")

    monkeypatch.setattr("presage.serving.codec.wire_outcomes.check_count", fail)

    answer = ask(rest, "POST", "/v1/outcomes", "{}", headers=of_owner(rest))

    assert check(answer, 503, "UNAVAILABLE") == "disk full"


# Deadlines and ids -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1n", "0S"])
def test_a_deadline_that_has_passed(rest, value):
    answer = ask(rest, "GET", "/v1/release", headers={"Grpc-Timeout": value})

    check(answer, 504, "DEADLINE_EXCEEDED")


def test_a_deadline_that_passes_during_the_call(rest, monkeypatch, predict_request):
    go_on = threading.Event()

    async def wait(*_: object, **__: object) -> bytes:
        await asyncio.to_thread(go_on.wait, 20)
        return b""

    monkeypatch.setattr("presage.serving.server.work_queue.WorkQueue.run", lambda *_, **__: wait())
    request = predict_request(1)
    request.jobs[0].job_id = "deadline"
    try:
        answer = ask(rest, "POST", "/v1/predict", request, headers=JSON | {"Grpc-Timeout": "200m"})
    finally:
        go_on.set()

    check(answer, 504, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("value", ["1", "1s", "-1S", "123456789m", "S", "1.5S", "\u0661S"])
def test_a_deadline_without_a_unit(rest, value):
    headers = {"Grpc-Timeout": value.encode("utf-8").decode("latin-1")}

    assert "500m" in check(ask(rest, "GET", "/v1/release", headers=headers), 400)


@pytest.mark.parametrize("value", ["10S", "1H", " 500m "])
def test_a_deadline_that_is_met(rest, value):
    assert ask(rest, "GET", "/v1/release", headers={"Grpc-Timeout": value}).status == 200


def test_a_response_has_the_id_of_its_request(rest):
    given = ask(rest, "GET", "/v1/release", headers={"X-Request-Id": "mine-1"})
    invalid = ask(rest, "GET", "/v1/release", headers={"X-Request-Id": "not valid"})
    failed = ask(rest, "POST", "/v1/predict", "{", headers=JSON | {"X-Request-Id": "mine-2"})

    assert given.headers["X-Request-Id"] == "mine-1"
    assert len(invalid.headers["X-Request-Id"]) == 16
    assert failed.json["requestId"] == "mine-2"


def test_a_server_without_a_release_is_unavailable(release, predict_request):
    loading, go_on = threading.Event(), threading.Event()

    class SlowSource(FolderSource):
        def folder(self) -> Any:
            loading.set()
            assert go_on.wait(20)
            return super().folder()

    async def start() -> Server:
        server = Server(Options(port=0, http_port=0), Metrics())
        starting = asyncio.create_task(server.start(SlowSource(release.folder)))
        await asyncio.to_thread(loading.wait, 20)
        starting_servers.append(starting)
        return server

    starting_servers: list[asyncio.Task[None]] = []
    loop = server_loop()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        health = ask(server, "GET", "/v1/health")
        answer = ask(server, "POST", "/v1/predict", predict_request())
    finally:
        go_on.set()
        asyncio.run_coroutine_threadsafe(_ended(starting_servers[0]), loop).result(20)
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(20)

    assert (health.status, health.json) == (503, {"status": "NOT_SERVING"})
    check(answer, 503, "UNAVAILABLE")


async def _ended(task: asyncio.Task[None]) -> None:
    await task
