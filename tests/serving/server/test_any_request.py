"""Any request of either protocol gets a documented response or error, without its own text.

Methods and fields come from the descriptors, so new ones are covered as well.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import message_factory
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from presage.features.colocation import Colocation
from presage.features.columns.schema import columns, schema_hash
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    MeasuredStep,
    ScalingRequest,
)
from presage.models.release.release import load_release
from presage.serving.authentication.callers import ROLES
from presage.serving.authentication.local_token import local_token
from presage.serving.client.credentials import Credentials
from presage.serving.codec import (
    wire_matrix,
    wire_outcomes,
    wire_requests,
    wire_scaling,
    wire_values,
)
from presage.serving.oip.messages import FILE
from presage.serving.oip.messages import SERVICE as OIP
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import OutcomeLog
from presage.serving.predictor.feature_rows import MAX_FEATURE
from presage.serving.predictor.served_release import Served
from presage.serving.server import inference_service, prediction_service
from presage.serving.server.call import Calls
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.work_queue import WorkQueue
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from tests.features.random_values import DEVICES, JOBS, SHARES
from tests.fuzzing.messages import submessages
from tests.serving.conftest import make_job
from tests.serving.oip.requests import colocations, features, raw_request, typed_request
from tests.serving.server.any_message import (
    SECRET,
    any_message,
    changed_message,
    fields,
    serialized,
)
from tests.serving.support.running_server import start_server
from tests.support.slow_tests import examples

Code = grpc.StatusCode
RELEASE = Path("data/pretrained/release")
SERVICES = {
    service.full_name: service
    for service in (
        pb.DESCRIPTOR.services_by_name["PredictionService"],
        FILE.services_by_name[OIP],
    )
}
METHODS = {
    f"/{name}/{method.name}": method
    for name, service in SERVICES.items()
    for method in service.methods
}
# What a request may end with (docs/forecasts/serving.md). FAILED_PRECONDITION: features of
# another version, or a release that was refused. RESOURCE_EXHAUSTED: a message too large.
DOCUMENTED = {
    Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION,
    Code.RESOURCE_EXHAUSTED,
}  # fmt: skip


def valid_requests() -> dict[str, list[Any]]:
    """Return valid requests by method; other methods take empty requests."""
    jobs = [make_job("a"), make_job("b", batch_size=4)]
    cpu = pb.Device(kind="cpu-2", share=pb.Share(fraction=0.5, mode="mps"))
    known = load_release(RELEASE).devices["cpu-2"]
    placements = [pb.Placement(job_index=1, device_index=0), pb.Placement(share=cpu.share)]
    asked: dict[str, Any] = {
        "jobs": [wire_values.write_job(job) for job in jobs],
        "devices": [cpu, wire_values.write_device(known)],
    }
    predict = pb.PredictRequest(**asked, placements=placements, coverage=0.8, levels=[0.95])
    members = [pb.Colocation.Member(job_index=i, share=cpu.share) for i in (0, 1)]
    together = pb.PredictInterferenceRequest(
        **asked, colocations=[pb.Colocation(device_index=1, members=members)], coverage=0.9
    )
    scaling = ScalingRequest(
        jobs[0], known, (GpuPlacement(2), GpuPlacement(4, 2, 8.0)), GpuPlacement(2),
        (MeasuredStep(GpuPlacement(1), 0.5), MeasuredStep(GpuPlacement(2, 2), 0.7)),
    )  # fmt: skip
    row = Placement(jobs[0], known, Share(0.5))
    schema = str(load_release(RELEASE).manifest["schema_hash"])
    outcome = Outcome(
        job=jobs[0], device=known, share=Share(), release_id="x", finished_at_unix_s=1.0,
        step_time_median_s=0.1, idempotency_key="k", colocated_jobs=((jobs[1], Share(0.5)),),
    )  # fmt: skip
    rows = {"features": features(2)}
    service = f"/{prediction_service.SERVICE_NAME}/"
    oip = f"/{inference_service.SERVICE_NAME}/"
    return {
        f"{service}Predict": [predict, pb.PredictRequest(**asked)],
        f"{service}PredictInterference": [together],
        f"{service}PredictScaling": [
            wire_scaling.write_scaling(scaling, 0.9),
            pb.PredictScalingRequest(
                job=asked["jobs"][0],
                device=pb.Device(kind="cpu-2"),
                placements=[pb.GpuPlacement(gpus=3)],
            ),
        ],
        f"{service}PredictMatrix": [wire_matrix.write_matrix([row, row], schema)],
        f"{service}PredictStream": [
            pb.PredictStreamRequest(request_id=7, predict=predict),
            pb.PredictStreamRequest(request_id=8, predict_interference=together),
        ],
        f"{service}ReportOutcomes": [wire_outcomes.write_report([outcome])],
        f"{service}GetRelease": [pb.GetReleaseRequest(device_kinds=["cpu-2"])],
        f"{oip}ModelInfer": [
            raw_request("memory", rows, id="7"),
            typed_request("step_time", rows),
            raw_request("interference", colocations(2, 1)),
            typed_request("interference", colocations(3)),
        ],
    }


RIGHT = valid_requests()


def any_request(method: str) -> st.SearchStrategy[Any]:
    """Return a strategy for any request of a method, most of them close to a valid one."""
    wild = any_message(METHODS[method].input_type)
    right = RIGHT.get(method)
    if right is None:
        return wild
    near = st.sampled_from(right).flatmap(changed_message)
    return st.sampled_from((near, near, near, wild)).flatmap(lambda chosen: chosen)


class Ended(Exception):  # noqa: N818
    """Error with which a method ends its call."""


class Context:
    """gRPC's context of a call."""

    def __init__(self) -> None:
        self.code, self.details = Code.OK, ""
        self.written: list[bytes] = []
        self.unread: list[bytes] = []

    def time_remaining(self) -> float:
        return 60.0

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        return self.unread.pop() if self.unread else grpc.aio.EOF

    async def write(self, content: bytes) -> None:
        self.written.append(content)

    async def abort(self, code: Code, details: str, _metadata: Any = ()) -> None:
        self.code, self.details = code, details
        raise Ended


class Services:
    """Both services of a server, without sockets."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        metrics = Metrics()
        served = Served(metrics)
        served.offer(RELEASE)
        calls, work = Calls(metrics, anonymous_roles=frozenset(ROLES)), WorkQueue(metrics)
        outcomes = OutcomeLog(folder / "log.db")

        async def reload() -> None:
            return

        async def make() -> list[grpc.GenericRpcHandler]:
            prediction = prediction_service.PredictionService(served, calls, work, outcomes, reload)
            inference = inference_service.InferenceService(served, calls, work)
            return [prediction.handlers(), inference.handlers()]

        self._handlers = self._loop.run_until_complete(make())
        self._outcomes, self._work = outcomes, work

    def ask(self, method: str, content: bytes) -> tuple[Code, str, list[bytes]]:
        """Return the status, its text and the responses."""
        details: Any = type("Details", (), {"method": method, "invocation_metadata": ()})()
        handler: Any = next(h for h in (g.service(details) for g in self._handlers) if h)
        return self._loop.run_until_complete(self._answer(handler, content))

    async def _answer(self, handler: Any, content: bytes) -> tuple[Code, str, list[bytes]]:
        context = Context()

        async def requests() -> AsyncIterator[bytes]:
            yield content

        try:
            if handler.response_streaming:
                await handler.stream_stream(requests(), context)
            else:
                context.unread = [content]
                context.written.append(await handler.stream_unary(None, context))
        except Ended:
            pass
        return context.code, context.details, context.written

    def close(self) -> None:
        self._outcomes.close()
        self._work.close()

        async def finish() -> None:
            doing = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*doing, return_exceptions=True)

        self._loop.run_until_complete(finish())
        self._loop.close()


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    service = Services(tmp_path_factory.mktemp("any"))
    yield service
    service.close()


def check(method: str, code: Code, details: str, written: list[bytes]) -> None:
    """Assert a documented status, and no text of the client in the error."""
    assert code in DOCUMENTED, details
    assert SECRET not in details
    assert "\n" not in details
    if code is Code.OK and written:
        kind = message_factory.GetMessageClass(METHODS[method].output_type)
        for part in submessages(kind.FromString(written[0])):
            if part.DESCRIPTOR is pb.Error.DESCRIPTOR:
                ends = {status.value[0]: status for status in Code}
                assert ends[part.grpc_status_code] in DOCUMENTED, part.message
                assert SECRET not in part.message
            if part.DESCRIPTOR is pb.Forecast.DESCRIPTOR:
                assert np.isfinite([part.median, part.low, part.high]).all()


@pytest.mark.parametrize("method", METHODS)
def test_any_request_gets_a_response_or_a_documented_error(services, method):
    @settings(suppress_health_check=list(HealthCheck), deadline=None)
    @given(data=st.data(), message=any_request(method))
    def ask(data: Any, message: Any) -> None:
        check(method, *services.ask(method, data.draw(serialized(message))))

    ask()


@pytest.mark.parametrize("method", METHODS)
def test_valid_requests_succeed_after_all_invalid_ones(services, method):
    for request in RIGHT.get(
        method, [message_factory.GetMessageClass(METHODS[method].input_type)()]
    ):
        code, details, _ = services.ask(method, request.SerializeToString())
        if method.endswith(("ModelMetadata",)):
            assert code is Code.NOT_FOUND  # an empty request names no model
        else:
            assert code is Code.OK, details


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.builds(Placement, JOBS, DEVICES, SHARES), min_size=1, max_size=3))
def test_the_largest_possible_jobs_get_a_response_or_an_error(services, placements):
    service = f"/{prediction_service.SERVICE_NAME}/"
    members, shares = [p.job for p in placements], [p.share for p in placements]
    together = Colocation(placements[0].device, tuple(members), tuple(shares))
    for method, request in {
        "Predict": wire_requests.write_predict(placements, 0.8),
        "PredictInterference": wire_requests.write_predict_interference([together], 0.8),
        "PredictScaling": wire_scaling.write_scaling(
            ScalingRequest(
                placements[0].job, placements[0].device, (GpuPlacement(2),),
                GpuPlacement(1, 1, 1.0),
            ),
            0.8,
        ),
    }.items():  # fmt: skip
        check(service + method, *services.ask(service + method, request.SerializeToString()))


@pytest.mark.parametrize(
    ("number", "code"),
    [(MAX_FEATURE, Code.OK), (1.01 * MAX_FEATURE, Code.INVALID_ARGUMENT)],
)
def test_the_largest_accepted_features_succeed(services, number, code):
    row = np.full(len(columns("full")), number, dtype="<f4") * np.float32(1 - 1e-6)
    request = pb.PredictMatrixRequest(
        schema_hash=schema_hash("full"),
        features=row.tobytes(),
        device_kinds=["cpu-2"],
        iterations=[2**63 - 1],
    )
    method = f"/{prediction_service.SERVICE_NAME}/PredictMatrix"

    found, details, written = services.ask(method, request.SerializeToString())

    assert found is code, details
    for response in map(pb.PredictMatrixResponse.FromString, written):
        assert np.isfinite(np.frombuffer(response.runtime_s, "<f8")).all()


FIELDS = {
    field.full_name: field for method in METHODS.values() for field in fields(method.input_type)
}


ALL_KINDS = settings(  # the first that is found, not the smallest
    max_examples=examples(2000), database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@functools.cache
def fields_ever_set(owner: Any) -> set[str]:
    """Return the fields of a message type that are set in any of many such messages."""
    seen: set[str] = set()

    def all_seen(message: Any) -> bool:
        seen.update(found.full_name for found, _ in message.ListFields())
        return len(seen) == len(owner.fields)

    with suppress(NoSuchExample):
        find(any_message(owner), all_seen, settings=ALL_KINDS)
    return seen


@pytest.mark.parametrize("name", FIELDS)
def test_the_strategies_set_every_field_of_every_request(name):
    owner = FIELDS[name].containing_type
    if owner.GetOptions().map_entry:
        return  # of a map, whose field is set

    assert name in fields_ever_set(owner)


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if not m.client_streaming])
def test_a_server_with_a_socket_survives_any_request(over_socket, method):
    channel, metadata = over_socket
    call = partial(channel.unary_unary(method), metadata=metadata, timeout=10)

    @settings(max_examples=examples(15), suppress_health_check=list(HealthCheck), deadline=None)
    @given(data=st.data(), message=any_request(method))
    def ask(data: Any, message: Any) -> None:
        try:
            call(data.draw(serialized(message)))
        except grpc.RpcError as error:
            check(method, error.code(), error.details() or "", [])

    ask()
    for request in RIGHT.get(method, ()):
        call(request.SerializeToString())


@pytest.fixture(scope="module")
def over_socket(tmp_path_factory):
    options = Options(port=0, outcomes=tmp_path_factory.mktemp("socket") / "log.db")
    with (
        start_server(load_release(RELEASE), options) as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        yield channel, Credentials(local_token(running.port)).metadata
