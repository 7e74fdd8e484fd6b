"""Response cache: equal bytes for equal requests to one release, within a memory limit."""

from __future__ import annotations

from typing import Any

import grpc
from hypothesis import given
from hypothesis import strategies as st

from presage.serving.codec import wire_values
from presage.serving.server.response_cache import CachedResponse, ResponseCache
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.running_server import start_server

A_RELEASE: Any = object()
ANOTHER: Any = object()


def answer(content: bytes) -> CachedResponse:
    return CachedResponse(content, 1, {})


@given(
    asked=st.lists(st.tuples(st.binary(max_size=8), st.sampled_from([A_RELEASE, ANOTHER]))),
    max_bytes=st.integers(0, 60),
)
def test_hits_belong_to_the_release_and_the_size_is_bounded(asked, max_bytes):
    answers = ResponseCache(max_bytes)
    for request, release in asked:
        response = answer(request * 2 + (b"a" if release is A_RELEASE else b"b"))
        found = answers.find(request, release)
        assert found is None or found == response
        answers.store(request, release, response)
        assert answers.size_bytes <= max_bytes
    held = [(key, answers.find(key, release)) for key in {key for key, _ in asked}]
    assert answers.size_bytes == sum(len(key) + len(of.content) for key, of in held if of)


def test_the_least_recently_used_response_is_evicted_first():
    answers = ResponseCache(max_bytes=6)
    for request in (b"a", b"b", b"c"):
        assert answers.find(request, A_RELEASE) is None
        answers.store(request, A_RELEASE, answer(b"1"))
    assert answers.find(b"a", A_RELEASE)
    answers.store(b"d", A_RELEASE, answer(b"1"))
    assert [bool(answers.find(one, A_RELEASE)) for one in (b"a", b"b", b"c", b"d")] == [
        True, False, True, True,
    ]  # fmt: skip


def test_a_repeated_request_gets_the_same_bytes_and_the_same_metrics(release, job):
    request = pb.PredictRequest(
        jobs=[wire_values.write_job(job("a"))], devices=[pb.Device(kind="cpu-2")], coverage=0.8
    ).SerializeToString()
    with (
        start_server(release, Options(port=0)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        ask: Any = channel.unary_unary("/presage.v1.PredictionService/Predict")
        first, *more = [ask(request, timeout=10) for _ in range(3)]
        sample = server.metrics.registry.get_sample_value
        domain = [
            sample("presage_forecasts_total", {"quantity": "memory_bytes", "in_domain": inside})
            for inside in ("true", "false")
        ]

        assert more == [first, first]
        assert sample("presage_response_cache_hits_total") == 2
        assert sum(value or 0 for value in domain) == 3
        assert sample("presage_request_rows_sum", {"method": "Predict"}) == 3

        # Bytes mean something else where they are a question on a stream.
        stream = pb_grpc.PredictionServiceStub(channel).PredictStream
        question = pb.PredictStreamRequest(request_id=7)
        question.predict.ParseFromString(request)
        (response,) = stream(iter([question]), timeout=10)
        assert response.predict.SerializeToString(
            deterministic=True
        ) == pb.PredictResponse.FromString(first).SerializeToString(deterministic=True)
