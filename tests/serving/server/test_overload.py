"""Overload, slow clients, deadlines and shutdown of a real server."""

import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from presage.errors import OverloadedError, ServiceError
from presage.features.placement import Placement
from presage.serving.admission.backlog import Backlog, server_ids
from presage.serving.admission.open_calls import OpenCalls
from presage.serving.client.client import PresageClient
from presage.serving.codec import wire_values
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import read_outcomes
from presage.serving.predictor.predictor import Predictor
from presage.serving.server.prediction_service import SERVICE_NAME
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.processes import serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until


def large_request(job, rows=4096):
    """Return a request that is large enough to run in a thread."""
    return pb.PredictRequest(
        jobs=[wire_values.write_job(job(f"job-{i}")) for i in range(64)],
        devices=[pb.Device(kind="cpu-2")] * (rows // 64),
    )


def test_rows_beyond_the_queue_limit_are_rejected_with_a_retry_delay_and_not_run(release, job, cpu):
    with (
        start_server(release, Options(port=0, queue_rows=4096)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = pb_grpc.PredictionServiceStub(channel)
        request = large_request(job)
        calls = [stub.Predict.future(request, timeout=30) for _ in range(24)]
        codes = [call.code() for call in calls]

        refused = [call for call in calls if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert grpc.StatusCode.OK in codes
        assert refused
        assert len(refused) + codes.count(grpc.StatusCode.OK) == 24
        hints = dict(refused[0].trailing_metadata())
        assert int(hints["grpc-retry-pushback-ms"]) >= 1
        assert "rows are waiting" in refused[0].details()
        sample = server.metrics.registry.get_sample_value
        assert sample("presage_rejections_total", {"reason": "overloaded"}) == len(refused)
        assert sample("presage_queue_rows") == 0

        with PresageClient(server.target) as client:  # and small ones go on
            assert client.predict([Placement(job(), cpu)])


def test_work_whose_deadline_passes_while_it_waits_is_not_done(release, job, monkeypatch):
    """Requests that wait behind two busy threads past their deadline are dropped.

        gRPC cancels them in the queue; where it does not, the server's own check rejects them
    (test_work_queue.py, test_call.py).
    """
    begun, go_on = [], threading.Event()
    with (
        start_server(release, Options(port=0)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        solo = Predictor.solo_quantiles

        def held(predictor, features):
            begun.append(len(features))
            go_on.wait(10)
            return solo(predictor, features)

        monkeypatch.setattr(Predictor, "solo_quantiles", held)
        stub = pb_grpc.PredictionServiceStub(channel)
        request = large_request(job, rows=128)
        patient = [stub.Predict.future(request, timeout=30) for _ in range(2)]
        wait_until(lambda: len(begun) == 2)
        hurried = [stub.Predict.future(request, timeout=0.5) for _ in range(10)]
        sample = server.metrics.registry.get_sample_value
        wait_until(lambda: sample("presage_queue_rows") == 12 * 128)  # all of them wait
        assert {call.code() for call in hurried} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        go_on.set()
        assert {call.code() for call in patient} == {grpc.StatusCode.OK}
        assert stub.Predict(request, timeout=30).forecasts  # behind all of them
        assert begun == [128] * 3


def test_slow_and_silent_clients_do_not_block_others(release, job, cpu):
    with start_server(release, Options(port=0)) as server:
        address = (server.host, server.port)
        silent = [socket.create_connection(address) for _ in range(50)]
        slow = [socket.create_connection(address) for _ in range(20)]
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)  # and empty settings
        for i, byte in enumerate(preface):  # a byte at a time, then never the rest
            for connection in slow[:10]:
                connection.send(bytes([byte]))
            if i > 20:
                time.sleep(0.005)
        begun = []
        channels = [grpc.insecure_channel(server.target) for _ in range(10)]
        for channel in channels:  # calls whose request never comes, and streams that say nothing
            stub = pb_grpc.PredictionServiceStub(channel)
            begun.append(stub.PredictStream(iter(threading.Event().wait, None)))
        with PresageClient(server.target, timeout_s=2) as client:
            elapsed_s = []
            for _ in range(50):
                begin_s = time.monotonic()
                assert client.predict([Placement(job(), cpu)])
                elapsed_s.append(time.monotonic() - begin_s)
        assert sorted(elapsed_s)[25] < 0.1
        for call in begun:
            call.cancel()
        for channel in channels:
            channel.close()
        for connection in (*silent, *slow):
            connection.close()


def test_a_message_too_large_is_rejected_unread(release):
    with (
        start_server(release, Options(port=0)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        call: Any = channel.unary_unary(f"/{SERVICE_NAME}/Predict")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(5_000_000), timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# The end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_every_call_in_flight(release, job, cpu, tmp_path, number):
    options = ("--release", release.folder, "--no-outcomes", "--drain-s", 0.3)
    stop = threading.Event()
    answers, errors = [], []
    placements = [Placement(job(f"{i}"), cpu) for i in range(400)]

    def ask(target):
        with PresageClient(target, timeout_s=10) as client:
            while not stop.is_set():
                try:
                    answers.append(client.predict(placements))
                except ServiceError as error:
                    errors.append(str(error))
                    return

    with serving(*options, cwd=tmp_path) as server, ThreadPoolExecutor(6) as pool:
        with grpc.insecure_channel(server.target) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service="presage.v1.PredictionService")
            )
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            asking = [pool.submit(ask, server.target) for _ in range(6)]
            wait_until(lambda: len(answers) > 20)
            server.process.send_signal(number)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            before = len(answers)
            assert server.process.wait(10) == 0
            stop.set()
            for future in asking:
                future.result(20)
        assert len(answers) > before  # it went on while it said so
    # A call ended well, or met a closed port; none was dropped in the middle.
    for error in errors:
        assert "no prediction service" in error
        assert not any(word in error for word in ("Socket closed", "reset", "GOAWAY", "RST"))


def test_an_idle_stream_ends_with_the_server(release, job, cpu):
    server = start_server(release, Options(port=0))
    with grpc.insecure_channel(server.target) as channel:
        stub = pb_grpc.PredictionServiceStub(channel)
        more = threading.Event()

        def questions():
            yield pb.PredictStreamRequest(
                request_id=1,
                predict=pb.PredictRequest(
                    jobs=[wire_values.write_job(job())], devices=[pb.Device(kind="cpu-2")]
                ),
            )
            more.wait(20)

        answers = stub.PredictStream(questions(), timeout=30)
        assert next(answers).predict.forecasts[0].memory_bytes.median > 0
        begin_s = time.monotonic()
        server.stop()
        assert time.monotonic() - begin_s < 5
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in str(caught.value.details())
        more.set()


def test_an_idle_reflection_stream_does_not_delay_the_shutdown(release):
    server = start_server(release, Options(port=0, grace_s=10))
    more = threading.Event()

    def questions():
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        more.wait(20)

    with grpc.insecure_channel(server.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = stub.ServerReflectionInfo(questions(), timeout=30)  # open for as long as it lives
        assert next(answers).list_services_response
        begin_s = time.monotonic()
        server.stop()
        assert time.monotonic() - begin_s < 3
        more.set()


def test_the_shutdown_takes_one_grace_period_when_a_client_does_not_read(release, job):
    server = start_server(release, Options(port=0, grace_s=2))
    request = large_request(job, rows=2048)
    more = threading.Event()

    def questions():
        for i in range(60):  # more answers than gRPC keeps for one that does not read them
            yield pb.PredictStreamRequest(request_id=i, predict=request)
        more.wait(30)

    with grpc.insecure_channel(server.target) as channel:
        answers = pb_grpc.PredictionServiceStub(channel).PredictStream(questions(), timeout=60)
        assert next(answers).predict.forecasts
        time.sleep(2)
        begin_s = time.monotonic()
        server.stop()
        assert 1.9 < time.monotonic() - begin_s < 3.5
        more.set()


def test_kill_9_loses_no_acknowledged_outcome(release, job, cpu, tmp_path):
    log = tmp_path / "log.db"
    acknowledged: list[str] = []
    for turn in range(3):
        with serving("--release", release.folder, "--outcomes", log, cwd=tmp_path) as server:

            def report(name, target=server.target, turn=turn):
                with PresageClient(target, timeout_s=5) as client:
                    for i in range(10_000):
                        keys = [f"{turn}-{name}-{i}-{k}" for k in range(3)]
                        outcomes = [Outcome(key, job(), cpu, runtime_s=1.0) for key in keys]
                        try:
                            reported = client.report(outcomes)
                        except ServiceError:
                            return
                        assert reported.accepted == 3
                        acknowledged.extend(keys)

            with ThreadPoolExecutor(4) as pool:
                reporting = [pool.submit(report, name) for name in range(4)]
                enough = len(acknowledged) + 60
                wait_until(lambda: len(acknowledged) > enough)  # noqa: B023
                server.process.kill()
                for future in reporting:
                    future.result(30)
    kept = [row.idempotency_key for row in read_outcomes(log)]
    assert len(kept) == len(set(kept))
    assert len(acknowledged) > 100
    assert set(acknowledged) <= set(kept)


def children_of(server):
    """Return the process ids of its workers."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {int(pid) for pid in found.stdout.split()}


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


def test_workers_share_a_port_and_a_dead_worker_is_replaced(release, job, cpu, tmp_path):
    options = ("--release", release.folder, "--no-outcomes", "--workers", 2, "--drain-s", 0)
    with serving(*options, cwd=tmp_path) as server:
        first = children_of(server)
        assert len(first) == 2
        with PresageClient(server.target) as client:
            assert client.predict([Placement(job(), cpu)])
        os.kill(min(first), signal.SIGKILL)
        wait_until(lambda: len(children_of(server) - {min(first)}) == 2)
        for _ in range(10):
            with PresageClient(server.target) as client:
                assert client.predict([Placement(job(), cpu)])
        last = children_of(server)
        assert last and all(map(is_running, last))
        server.process.terminate()
        assert server.process.wait(15) == 0
        assert not any(map(is_running, last))


def is_draining(target: str) -> bool:
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return bool(found.status == health_pb2.HealthCheckResponse.NOT_SERVING)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains_its_workers(release, job, tmp_path, number):
    """Ctrl-C and systemd signal every process: workers get a second signal from their parent."""
    options = ("--release", release.folder, "--no-outcomes", "--workers", 2, "--drain-s", 1)
    question = pb.PredictStreamRequest(
        predict=pb.PredictRequest(
            jobs=[wire_values.write_job(job())], devices=[pb.Device(kind="cpu-2")]
        )
    )
    questions: list[SimpleQueue[pb.PredictStreamRequest]] = [SimpleQueue() for _ in range(6)]
    with serving(*options, cwd=tmp_path) as server, ExitStack() as stack:
        streams = []
        for asked in questions:  # a connection each, so that both workers have some
            local = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(server.target, options=local))
            stub = pb_grpc.PredictionServiceStub(channel)
            streams.append(stub.PredictStream(iter(asked.get, None), timeout=30))
        workers = children_of(server)
        for _ in range(2):
            for asked, answers in zip(questions, streams, strict=True):
                asked.put(question)
                assert next(answers).predict.forecasts
            os.killpg(server.process.pid, number)  # and again, once they drain
            wait_until(lambda: is_draining(server.target))
        time.sleep(0.3)  # a worker that the second signal ends would have ended
        for asked, answers in zip(questions, streams, strict=True):
            asked.put(question)
            assert next(answers).predict.forecasts  # no call was ended by the second signal
        for answers in streams:
            with pytest.raises(grpc.RpcError) as caught:
                next(answers)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in str(caught.value.details())
        assert server.process.wait(15) == 0
        assert not any(map(is_running, workers))


def test_workers_end_with_their_parent(release, tmp_path):
    options = ("--release", release.folder, "--no-outcomes", "--workers", 2, "--drain-s", 0)
    with serving(*options, cwd=tmp_path) as server:
        workers = children_of(server)
        assert len(workers) == 2
        server.process.kill()
        wait_until(lambda: not any(map(is_running, workers)))


def test_too_many_calls_at_once_are_rejected_early_with_a_retry_delay(release, job, monkeypatch):
    """Calls that Python has not begun are bounded by gRPC, far beyond the server's capacity."""
    requests = [  # no two the same: those would be answered from what is kept
        pb.PredictRequest(
            jobs=[wire_values.write_job(job(f"{i}"))], devices=[pb.Device(kind="cpu-2")]
        )
        for i in range(3000)
    ]
    go_on, before = threading.Event(), server_ids()
    with start_server(release, Options(port=0)) as server:
        backlog = Backlog(before, OpenCalls())  # gRPC's count of calls, as the server reads it
        solo = Predictor.solo_quantiles

        def held(predictor, features):
            go_on.wait(30)  # in the event loop: all calls after the first one wait inside gRPC
            return solo(predictor, features)

        monkeypatch.setattr(Predictor, "solo_quantiles", held)
        channels = [
            grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(12)
        ]
        calls = [
            pb_grpc.PredictionServiceStub(channels[i % 12]).Predict.future(request, timeout=30)
            for i, request in enumerate(requests)
        ]
        wait_until(lambda: backlog.count_calls()[1] >= 1000)
        go_on.set()
        codes = [call.code() for call in calls]
        refused = [call for call in calls if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
        said = [(call.details(), dict(call.trailing_metadata())) for call in refused]
        sample = server.metrics.registry.get_sample_value
        rows = sample("presage_request_rows_sum", {"method": "Predict"})
        for channel in channels:
            channel.close()
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes.count(grpc.StatusCode.OK) > 200
    for details, hints in said:
        assert "calls are waiting and the limit is 256" in details
        assert 1 <= int(hints["grpc-retry-pushback-ms"]) < 30_000
    assert rows == codes.count(grpc.StatusCode.OK)  # those refused were not even read


def test_the_overload_error_has_a_retry_delay(release, job, cpu):
    options = Options(port=0, rows_per_s=10.0)
    with start_server(release, options) as server, PresageClient(server.target) as client:
        client.predict([Placement(job(), cpu)] * 30)
        with pytest.raises(OverloadedError) as caught:
            client.predict([Placement(job(), cpu)])
    assert caught.value.retry_after_s == pytest.approx(2.1, abs=0.5)
