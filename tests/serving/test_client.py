"""The client against servers that are absent, late, slow, broken or in the way."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from presage.features.errors import InvalidJobError, ServiceError, UnknownDeviceError
from presage.features.placement import Placement
from presage.serving.client import PresageClient
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc


@contextmanager
def serving(answer, timeout_s=3.0):
    """A server whose Predict is ``answer(call_number, context)``; yields a client and the calls."""
    calls: list[int] = []

    class Fake(pb_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            calls.append(len(calls) + 1)
            return answer(calls[-1], context)

    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    pb_grpc.add_PredictionServiceServicer_to_server(Fake(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with PresageClient(f"127.0.0.1:{port}", timeout_s=timeout_s) as client:
            yield client, calls
    finally:
        server.stop(None).wait()


def forecast(median=1.0):
    number = pb.Forecast(median=median, low=0.5, high=2.0, unit="seconds", in_domain=True)
    one = pb.JobForecast(
        compute_utilization=number, memory_bytes=number, step_time_s=number, runtime_s=number
    )
    return pb.PredictResponse(forecasts=[one], release_id="r", coverage=0.8)


def test_nobody_there_is_an_error_that_says_how_to_start_one(job, cpu):
    with (
        PresageClient("127.0.0.1:1") as client,
        pytest.raises(ServiceError, match=r"no prediction service at 127\.0\.0\.1:1 .*presage ser"),
    ):
        client.predict([Placement(job(), cpu)])


def test_nobody_there_takes_no_longer_than_the_deadline():
    started = time.monotonic()

    with PresageClient("127.0.0.1:1", timeout_s=0.2) as client, pytest.raises(ServiceError):
        client.release()

    assert time.monotonic() - started < 1.0


def test_unavailable_is_asked_again(job, cpu):
    def answer(call, context):
        if call < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "still loading")
        return forecast()

    with serving(answer) as (client, calls):
        (answered,) = client.predict([Placement(job(), cpu)])

    assert answered.step_time_s.median == 1.0
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidJobError, "^the server's words$"),
        (grpc.StatusCode.NOT_FOUND, UnknownDeviceError, "^the server's words$"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ServiceError, "too large .*the server's words"),
        (grpc.StatusCode.INTERNAL, ServiceError, "failed with INTERNAL: the server's words"),
        (grpc.StatusCode.UNKNOWN, ServiceError, "failed with UNKNOWN"),
        (grpc.StatusCode.UNIMPLEMENTED, ServiceError, "failed with UNIMPLEMENTED"),
    ],
)
def test_any_other_status_is_final_and_keeps_the_servers_words(job, cpu, code, error, said):
    def refuse(call, context):
        context.abort(code, "the server's words")

    with serving(refuse) as (client, calls), pytest.raises(error, match=said):
        client.predict([Placement(job(), cpu)])

    assert len(calls) == 1


def test_a_server_that_never_answers_is_left_at_the_deadline(job, cpu):
    def hang(call, context):
        time.sleep(0.6)

    with (
        serving(hang, timeout_s=0.2) as (client, _),
        pytest.raises(ServiceError, match=r"did not answer within 0\.2 s"),
    ):
        client.predict([Placement(job(), cpu)])


@pytest.mark.parametrize("median", [float("nan"), 5.0])
def test_an_answer_that_cannot_be_is_not_passed_on(job, cpu, median):
    with (
        serving(lambda call, context: forecast(median)) as (client, _),
        pytest.raises(ServiceError, match="answered what cannot be"),
    ):
        client.predict([Placement(job(), cpu)])


def test_a_request_too_large_to_send_is_a_service_error(client, job, cpu):
    op = job().op_stats[0]
    jobs = [job(f"job-{i}", op_stats=(op,) * 5_000) for i in range(20)]  # 5 MB

    with pytest.raises(ServiceError, match=r"too large.*ask for less at once"):
        client.predict([Placement(j, cpu) for j in jobs])


def test_more_rows_than_the_server_takes_are_refused_by_it(client, job, cpu):
    placement = Placement(job(), cpu)

    assert len(client.predict([placement] * 4096)) == 4096
    with pytest.raises(InvalidJobError, match="4097 rows, at most 4096"):
        client.predict([placement] * 4097)


def test_one_client_serves_many_threads(client, job, cpu):
    jobs = [job(f"job-{batch}", batch_size=batch) for batch in range(1, 33)]
    alone = client.predict([Placement(j, cpu) for j in jobs])

    with ThreadPoolExecutor(max_workers=8) as pool:
        together = list(pool.map(lambda j: client.predict([Placement(j, cpu)])[0], jobs))

    assert together == alone


def test_the_client_imports_only_grpc_and_protobuf():
    code = "import sys, presage.serving.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name.split(".")[0] for name in done.stdout.split()}
    foreign = loaded - sys.stdlib_module_names
    assert {"grpc", "google", "presage"} <= foreign
    # grpc itself imports its sister packages where they are installed.
    sisters = {"grpc_health", "grpc_reflection", "grpc_tools", "cython_runtime"}
    unexpected = foreign - sisters - {"grpc", "google", "presage", "typing_extensions"}
    assert {name for name in unexpected if not name.startswith("_")} == set()
