"""Real server on a real port: valid and invalid requests, start and shutdown."""

import os
import socket
import subprocess
import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from presage.errors import ReleaseError, ServiceError
from presage.features.placement import Placement
from presage.models.release.release import load_release
from presage.serving.authentication.token_file import add_token
from presage.serving.client.client import PresageClient
from presage.serving.client.credentials import Credentials
from presage.serving.codec import wire_values
from presage.serving.server.prediction_service import SERVICE_NAME
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.processes import free_port
from tests.serving.support.running_server import start_server

HEALTH = health_pb2.HealthCheckResponse


@pytest.fixture(scope="module")
def stub(channel):
    return pb_grpc.PredictionServiceStub(channel)


def status_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Asked over the bare protocol ------------------------------------------------------------------


def test_jobs_and_devices_without_placements_mean_every_job_on_every_device(stub, job, release):
    request = pb.PredictRequest(
        jobs=[wire_values.write_job(job("a")), wire_values.write_job(job("b"))],
        devices=[pb.Device(kind="cpu-2"), pb.Device(kind="v100"), pb.Device(kind="t4")],
    )

    response = stub.Predict(request, timeout=5)

    assert len(response.forecasts) == 6
    assert response.release_id == release.release_id
    assert response.coverage == 0.8
    steps = [forecast.step_time_s.median for forecast in response.forecasts]
    assert steps[:3] == steps[3:]  # equal jobs
    assert [f.memory_bytes.in_domain for f in response.forecasts] == [True, False, False] * 2


def test_a_data_sheet_defines_a_device_of_any_kind(stub, job, cpu):
    device = wire_values.write_device(cpu)
    device.kind = "never-heard-of"

    response = stub.Predict(
        pb.PredictRequest(jobs=[wire_values.write_job(job())], devices=[device]), timeout=5
    )

    assert response.forecasts[0].step_time_s.median > 0
    assert not response.forecasts[0].step_time_s.in_domain


def test_interference_has_the_default_coverage(stub, job):
    request = pb.PredictInterferenceRequest(
        jobs=[wire_values.write_job(job())],
        devices=[pb.Device(kind="cpu-2")],
        colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)],
    )

    response = stub.PredictInterference(request, timeout=5)

    assert [s.median for s in response.forecasts[0].slowdowns] == pytest.approx([1.5, 1.5])
    assert response.coverage == 0.8


def test_a_missing_job_batch_size_zero_and_nan_are_invalid_arguments(stub, job):
    def ask(job_row):
        return lambda: stub.Predict(
            pb.PredictRequest(jobs=job_row, devices=[pb.Device(kind="cpu-2")]), timeout=5
        )

    zero, nan = wire_values.write_job(job()), wire_values.write_job(job())
    zero.batch_size = 0
    nan.op_stats[1].flops = float("nan")

    code, details = status_of(ask([]))
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "jobs has 0 entries, must have 1 to 4096",
    )
    code, details = status_of(ask([zero]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith("jobs[0].batch_size=0, must be >= 1")
    code, details = status_of(ask([nan]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith("jobs[0].op_stats[1].flops=nan")


def test_the_error_of_an_unknown_device_names_the_nearest(stub, job):
    request = pb.PredictRequest(
        jobs=[wire_values.write_job(job())], devices=[pb.Device(kind="h20")]
    )

    code, details = status_of(lambda: stub.Predict(request, timeout=5))

    assert code is grpc.StatusCode.NOT_FOUND
    assert "did you mean 'h200'" in details


def test_the_server_survives_malformed_bytes(channel, stub):
    raw = channel.unary_unary(f"/{SERVICE_NAME}/Predict")

    code, details = status_of(lambda: raw(os.urandom(10_000_000), timeout=10))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    code, _ = status_of(lambda: raw(b"\xff" * 1000, timeout=5))
    assert code is grpc.StatusCode.INVALID_ARGUMENT

    assert stub.GetRelease(pb.GetReleaseRequest(), timeout=5).release_id


def test_reflection_lists_the_services(channel):
    ask = reflection_pb2.ServerReflectionRequest
    questions = iter(
        [ask(list_services=""), ask(file_containing_symbol="presage.v1.PredictionService")]
    )

    listing, file = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        questions, timeout=5
    )

    names = {service.name for service in listing.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names
    assert file.file_descriptor_response.file_descriptor_proto


# Health, and the end ---------------------------------------------------------------------------


def test_health_is_serving_for_the_server_and_its_service(channel):
    health = health_pb2_grpc.HealthStub(channel)

    for name in ("", "presage.v1.PredictionService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == HEALTH.SERVING
    code, _ = status_of(
        lambda: health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=5)
    )
    assert code is grpc.StatusCode.NOT_FOUND


def test_health_is_not_serving_before_the_server_stops(release):
    server = start_server(release, Options(port=0))
    with grpc.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE_NAME), timeout=10
        )
        assert next(watch).status == HEALTH.SERVING

        stopping = threading.Thread(target=server.stop)
        stopping.start()

        assert next(watch).status == HEALTH.NOT_SERVING
        assert not list(watch)  # it ends by itself
        stopping.join(timeout=5)
    assert not stopping.is_alive()
    assert not is_listening(server.port)
    server.stop()  # twice does nothing


# What keeps a server from starting -------------------------------------------------------------


def test_the_error_names_a_port_in_use(server, release):
    with pytest.raises(ServiceError) as caught:
        start_server(release, Options(port=server.port))

    assert str(caught.value) == (
        f"port 127.0.0.1:{server.port} is in use; stop the other server or pass --port"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_listens_beyond_loopback_only_on_request(release, host):
    with pytest.raises(ServiceError, match=f"{host} is not a loopback address.*--allow-remote"):
        start_server(release, Options(host=host, port=0))


def test_a_server_beyond_loopback_needs_authentication(release):
    with pytest.raises(ServiceError, match=r"0\.0\.0\.0 is not a loopback.*--tokens.*--client-ca"):
        start_server(release, Options(host="0.0.0.0", port=0, allow_remote=True))


def test_a_server_listens_beyond_loopback_on_request(release, tmp_path):
    token = add_token(tmp_path / "tokens", "ann", ["predict"])
    options = Options(host="0.0.0.0", port=0, allow_remote=True, tokens=tmp_path / "tokens")
    with (
        start_server(release, options) as server,
        PresageClient(f"127.0.0.1:{server.port}", credentials=Credentials(token=token)) as client,
    ):
        assert client.release().release_id == release.release_id


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"host": "no.such.host.invalid"}, "host 'no.such.host.invalid' has no address"),
        ({"port": 65_536}, "port 65536 is out of range"),
        ({"host": "192.0.2.1", "allow_remote": True}, "cannot listen on 192.0.2.1:0"),
    ],
)
def test_an_address_that_cannot_be_bound_is_an_error(release, where, said):
    with pytest.raises(ServiceError, match=said):
        start_server(release, Options(**{"port": 0} | where))


def test_a_corrupt_release_is_rejected_before_the_server_listens(release_with, handmade_models):
    port = free_port()
    intact = release_with()
    (intact.folder / "memory.onnx").write_bytes(b"changed")
    with pytest.raises(ReleaseError, match="sha256"):
        start_server(load_release(intact.folder), Options(port=port))
    (intact.folder / "memory.onnx").unlink()
    with pytest.raises(ReleaseError, match=r"memory\.onnx: cannot be read"):
        start_server(load_release(intact.folder), Options(port=port))

    nan = handmade_models.column_times("roofline_s", (float("nan"),) * 5)
    broken = release_with(models=handmade_models.all() | {"step_time": nan})
    with pytest.raises(ReleaseError, match=r"step_time\.onnx: predicted"):
        start_server(broken, Options(port=port))

    assert not is_listening(port)


def test_a_release_that_fails_later_is_an_internal_error_not_a_nan(
    release_with, handmade_models, job, cpu, caplog
):
    # Finite for the probes, beyond float32 for a job of a thousand times their size.
    grows = handmade_models.column_times("peak_live_bytes", (0.0, 1e29, 1e30, 1e30, 1e30))
    broken = release_with(models=handmade_models.all() | {"memory": grows})

    with (
        start_server(broken, Options(port=0)) as server,
        PresageClient(server.target) as client,
        pytest.raises(ServiceError, match=r"INTERNAL: .*memory\.onnx: predicted quantiles"),
    ):
        client.predict([Placement(job(batch_size=100_000), cpu)])
    assert any("memory.onnx" in str(vars(record)) for record in caplog.records)


# What the process needs ------------------------------------------------------------------------


def test_the_server_imports_no_training_libraries():
    code = "import sys, presage.serving.server.server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "pandas", "mlflow", "pyarrow", "sklearn", "onnx", "yaml"}
