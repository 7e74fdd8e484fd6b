"""Client against servers that are absent, slow, broken or unavailable."""

import asyncio
import pickle
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from presage.errors import (
    InvalidJobError,
    MissingMethodError,
    OverloadedError,
    ServiceError,
    UnknownDeviceError,
)
from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.serving.client.client import AsyncPresageClient, PresageClient
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.running_server import start_server


@contextmanager
def serving(answer, timeout_s=3.0):
    """Run a server whose Predict is ``answer(call_number, context)``; yield a client and calls."""
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


def test_the_error_without_a_server_names_the_command_to_start_one(job, cpu):
    with (
        PresageClient("127.0.0.1:1") as client,
        pytest.raises(ServiceError, match=r"no prediction service at 127\.0\.0\.1:1: .*presage se"),
    ):
        client.predict([Placement(job(), cpu)])


def test_without_a_server_the_error_is_raised_by_the_deadline():
    started = time.monotonic()

    with PresageClient("127.0.0.1:1", timeout_s=0.2) as client, pytest.raises(ServiceError):
        client.release()

    assert time.monotonic() - started < 1.0


def test_unavailable_is_retried(job, cpu):
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
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OverloadedError, ": the server's words$"),
        (grpc.StatusCode.INTERNAL, ServiceError, "failed with INTERNAL: the server's words"),
        (grpc.StatusCode.UNKNOWN, ServiceError, "failed with UNKNOWN"),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            MissingMethodError,
            "not support this call .the server's words",
        ),
    ],
)
def test_any_other_status_is_final_and_keeps_the_servers_message(job, cpu, code, error, said):
    def refuse(call, context):
        context.abort(code, "the server's words")

    with serving(refuse) as (client, calls), pytest.raises(error, match=said):
        client.predict([Placement(job(), cpu)])

    assert len(calls) == 1


def test_a_call_without_a_response_ends_at_the_deadline(job, cpu):
    def hang(call, context):
        time.sleep(0.6)

    with (
        serving(hang, timeout_s=0.2) as (client, _),
        pytest.raises(ServiceError, match=r"did not answer within 0\.2 s"),
    ):
        client.predict([Placement(job(), cpu)])


@pytest.mark.parametrize("median", [float("nan"), 5.0])
def test_an_invalid_response_is_an_error(job, cpu, median):
    with (
        serving(lambda call, context: forecast(median)) as (client, _),
        pytest.raises(ServiceError, match="sent an invalid response"),
    ):
        client.predict([Placement(job(), cpu)])


def test_too_many_jobs_for_one_request_are_split(client, job, cpu):
    op = job().op_stats[0]
    large = [job(f"job-{i}", op_stats=(op,) * 5_000) for i in range(20)]  # 5 MB
    placements = [Placement(j, cpu) for j in large]
    placements += [Placement(job(batch_size=1 + i % 7), cpu) for i in range(5000)]

    answers = client.predict(placements)

    assert len(answers) == len(placements)
    assert answers[3] == client.predict(placements[3:4])[0]
    assert answers[-1] == client.predict(placements[-1:])[0]
    pairs = [Colocation(cpu, (job(), job()), (Share(), Share()))] * 3000
    assert len(client.predict_interference(pairs)) == 3000


def test_the_asyncio_client_returns_the_same(server, client, job, cpu):
    """Run in a separate process: gRPC's asyncio layer supports one event loop a process."""
    code = """
        import asyncio, pickle, sys
        from presage.serving.client.client import AsyncPresageClient

        async def ask(target, placements, colocations):
            async with AsyncPresageClient(target) as client:
                alone = await client.predict(placements)
                many = await asyncio.gather(*(client.predict(placements) for _ in range(20)))
                assert all(answer == alone for answer in many)
                assert await client.predict_matrix(placements) == alone
                return (
                    alone,
                    await client.predict_interference(colocations),
                    (await client.device("cpu-2")).kind,
                    (await client.release()).release_id,
                )

        asked = pickle.load(sys.stdin.buffer)
        pickle.dump(asyncio.run(ask(*asked)), sys.stdout.buffer)
    """
    placements = [Placement(job(), cpu), Placement(job(batch_size=7), cpu, Share(0.5, "mps"))]
    pairs = [Colocation(cpu, (job(), job()), (Share(), Share()))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=pickle.dumps((server.target, placements, pairs)),
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert pickle.loads(done.stdout) == (
        client.predict(placements),
        client.predict_interference(pairs),
        "cpu-2",
        client.release().release_id,
    )


def test_one_client_serves_many_threads(client, job, cpu):
    jobs = [job(f"job-{batch}", batch_size=batch) for batch in range(1, 33)]
    expected = client.predict([Placement(j, cpu) for j in jobs])

    with ThreadPoolExecutor(max_workers=8) as pool:
        together = list(pool.map(lambda j: client.predict([Placement(j, cpu)])[0], jobs))

    assert together == expected


def test_the_client_imports_only_grpc_protobuf_and_numpy():
    code = "import sys, presage.serving.client.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name.split(".")[0] for name in done.stdout.split()}
    foreign = loaded - sys.stdlib_module_names
    assert {"grpc", "google", "presage"} <= foreign
    # grpc itself imports its sister packages where they are installed.
    sisters = {"grpc_health", "grpc_reflection", "grpc_tools", "cython_runtime"}
    sisters |= {"sitecustomize"}  # the distribution's own
    unexpected = foreign - sisters - {"grpc", "google", "presage", "typing_extensions", "numpy"}
    assert {name for name in unexpected if not name.startswith("_")} == set()


def test_a_client_accepts_a_module_a_file_or_features(client, job, cpu, tmp_path):
    import torch

    from presage.serving.client.job_features import from_module, to_json

    def build():
        return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU())

    inputs = torch.zeros(8, 64)
    (expected,) = client.predict([Placement(from_module(build, inputs, iterations=50), cpu)])
    assert client.predict_job((build, inputs), "cpu-2", iterations=50) == expected

    file = tmp_path / "net.onnx"
    torch.onnx.export(build(), (inputs,), file, dynamo=True, verbose=False)
    read = client.predict_job(file, "cpu-2", batch_size=8, iterations=50)
    assert read.memory_bytes.median > 0

    features = tmp_path / "job.json"
    features.write_text(to_json(job()))
    assert client.predict_job(features, "cpu-2") == client.predict_job(job(), "cpu-2")
    half = client.predict_job(job(), "cpu-2", share=Share(0.5, "mps"))
    assert half.step_time_s.median > client.predict_job(job(), "cpu-2").step_time_s.median
    with pytest.raises(InvalidJobError, match="define iterations already"):
        client.predict_job(job(), "cpu-2", iterations=5)
    with pytest.raises(InvalidJobError, match=r"none\.json: cannot be read"):
        client.predict_job(str(tmp_path / "none.json"), "cpu-2")


def test_a_device_is_found_by_any_of_its_names(release):
    with start_server(release, Options(port=0)) as server, PresageClient(server.target) as client:
        assert client.device("Tesla T4") == client.device("t4")

        async def asked() -> str:
            async with AsyncPresageClient(server.target) as client:
                kind: str = (await client.device("Tesla T4")).kind
                return kind

        assert asyncio.run(asked()) == "t4"
