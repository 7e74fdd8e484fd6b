"""`presage.v1` beyond simple requests: partial errors, levels, streams, matrices, reports."""

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from presage.errors import InvalidJobError, UnknownDeviceError
from presage.features.columns.schema import columns, schema_hash
from presage.features.device.device import Share
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.serving.client.client import PresageClient
from presage.serving.codec import wire_matrix, wire_outcomes, wire_values
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import read_outcomes
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.server_options import Options
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from tests.serving.support.processes import own_metadata
from tests.serving.support.running_server import server_loop, start_server
from tests.support.waiting import wait_until

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.target) as channel:
        yield pb_grpc.PredictionServiceStub(channel)


def status_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def request_of(job, *, jobs=3):
    return pb.PredictRequest(
        jobs=[wire_values.write_job(job(f"job-{i}")) for i in range(jobs)],
        devices=[pb.Device(kind="cpu-2"), pb.Device(kind="v100")],
    )


# Partial success -------------------------------------------------------------------------------


def test_one_bad_job_is_an_error_for_its_own_rows(stub, job):
    request = request_of(job)
    whole = stub.Predict(request, timeout=5)
    request.jobs[1].batch_size = 0

    response = stub.Predict(request, timeout=5)

    assert [row.HasField("error") for row in response.forecasts] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    error = response.forecasts[2].error
    assert error.grpc_status_code == Code.INVALID_ARGUMENT.value[0]
    assert error.message.startswith("jobs[1].batch_size=0, must be >= 1")
    assert not response.forecasts[2].HasField("memory_bytes")
    for good in (0, 1, 4, 5):
        assert response.forecasts[good] == whole.forecasts[good]


def test_an_unknown_device_and_a_bad_share_are_errors_for_their_own_rows(stub, job):
    request = request_of(job)
    request.devices.add(kind="h20")
    request.devices.add(kind="cpu-2").share.fraction = 2.0

    rows = stub.Predict(request, timeout=5).forecasts

    for j in range(3):
        assert not rows[4 * j].HasField("error")
        assert rows[4 * j + 2].error.grpc_status_code == Code.NOT_FOUND.value[0]
        assert "did you mean 'h200'" in rows[4 * j + 2].error.message
        assert rows[4 * j + 3].error.message.startswith("devices[3].share: share 2.0")


def test_a_job_beyond_the_models_is_an_error_for_its_own_row(stub, job):
    request = request_of(job)
    for name in ("parameter", "activation"):
        setattr(request.jobs[0].memory, f"{name}_bytes", 2**61)
    request.jobs[0].op_stats[0].flops = 1e300

    rows = stub.Predict(request, timeout=5).forecasts

    assert "feature 'flops'" in rows[0].error.message or "is inf" in rows[0].error.message
    assert "job-0" not in rows[0].error.message
    assert rows[2].memory_bytes.median > 0


def test_a_call_whose_rows_all_fail_ends_with_the_first_rows_status(stub, job):
    request = request_of(job, jobs=1)
    request.devices[0].kind, request.devices[1].kind = "h20", "other kind"
    code, details = status_of(lambda: stub.Predict(request, timeout=5))
    assert code is Code.NOT_FOUND
    assert details.startswith("devices[0].kind is not known; did you mean 'h200'")


def test_a_bad_member_is_an_error_for_its_colocation(stub, job):
    request = pb.PredictInterferenceRequest(
        jobs=[wire_values.write_job(job("good")), wire_values.write_job(job("bad", batch_size=3))],
        devices=[pb.Device(kind="cpu-2")],
        colocations=[
            pb.Colocation(members=[pb.Colocation.Member(job_index=j) for j in members])
            for members in ((0, 0), (0, 1), (0,), (1, 1, 0), (0, 0, 0))
        ],
    )
    whole = stub.PredictInterference(request, timeout=5).forecasts
    for change in (
        lambda row: setattr(row, "iterations", 0),
        lambda row: setattr(row.op_stats[0], "flops", 1e300),
    ):
        changed = pb.PredictInterferenceRequest.FromString(request.SerializeToString())
        change(changed.jobs[1])
        rows = stub.PredictInterference(changed, timeout=5).forecasts
        assert [row.HasField("error") for row in rows] == [False, True, False, True, False]
        assert [rows[i] for i in (0, 2, 4)] == [whole[i] for i in (0, 2, 4)]


def test_the_client_returns_errors_by_row_or_raises_the_first(client, server, job, cpu):
    impossible = job("impossible")
    object.__setattr__(impossible.job, "batch_size", 0)
    assert isinstance(impossible, JobFeatures)
    placements = [Placement(job(), cpu), Placement(impossible, cpu), Placement(job(), cpu)]

    each = client.predict_each(placements)

    assert [type(row) for row in each] == [JobForecast, InvalidJobError, JobForecast]
    with pytest.raises(InvalidJobError, match=r"jobs\[1\]\.batch_size=0"):
        client.predict(placements)
    with pytest.raises(UnknownDeviceError):
        client.device("h20")


# Levels ----------------------------------------------------------------------------------------


def test_quantiles_have_the_requested_levels(client, stub, job, cpu, constants):
    (answer,) = client.predict([Placement(job(), cpu)], levels=(0.95, 0.5, 0.05))
    memory = answer.memory_bytes
    low, _, _, _, high = constants.memory
    assert memory.quantiles == (
        (0.95, pytest.approx(memory.median * high / 2)),
        (0.5, memory.median),
        (0.05, pytest.approx(memory.median * low / 2)),
    )
    pair = pb.PredictInterferenceRequest(
        jobs=[wire_values.write_job(job())],
        devices=[pb.Device(kind="cpu-2")],
        colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)],
        levels=[0.9],
    )
    (row,) = stub.PredictInterference(pair, timeout=5).forecasts
    assert list(row.slowdowns[0].quantiles) == [row.slowdowns[0].high]

    request = request_of(job)
    request.levels.append(0.99)
    code, details = status_of(lambda: stub.Predict(request, timeout=5))
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith("levels[0] is not a quantile of release")
    assert "use some of 0.05, 0.1, 0.5, 0.9, 0.95" in details


# Matrices --------------------------------------------------------------------------------------


def test_a_matrix_gets_the_same_forecasts_as_its_jobs(client, job, cpu):
    placements = [
        Placement(job(batch_size=b, iterations=10 * b), device, Share(share, "mps"))
        for b, device, share in ((1, cpu, 1.0), (300, cpu, 0.5), (8, client.device("v100"), 0.25))
    ]
    assert client.predict_matrix(placements) == client.predict(placements)
    assert client.predict_matrix(placements, coverage=0.9) == client.predict(
        placements, coverage=0.9
    )


def test_a_matrix_accepts_devices_by_any_name_and_out_of_domain_rows(stub, client, job):
    (row,) = [Placement(job(), client.device("v100-16gb"))]
    request = wire_matrix.write_matrix([row], schema_hash())

    def flags(kind):
        request.device_kinds[0] = kind
        return stub.PredictMatrix(request, timeout=5).in_domain

    assert flags("Tesla V100-SXM2-16GB") == flags(row.device.kind)
    assert flags("a device of our own") == b"\0"


def test_a_stale_matrix_is_rejected_with_the_current_schema(stub, job, cpu):
    request = wire_matrix.write_matrix([Placement(job(), cpu)], "0123456789abcdef")
    code, details = status_of(lambda: stub.PredictMatrix(request, timeout=5))
    assert code is Code.FAILED_PRECONDITION
    assert schema_hash() in details
    assert "0123456789abcdef" not in details


BAD_MATRICES = [
    (lambda r: r.ClearField("features"), "features has 0 bytes, must be 1 to 4096 rows of"),
    (lambda r: setattr(r, "features", r.features[:-1]), "features has"),
    (lambda r: setattr(r, "features", r.features * 4097), "features has"),
    (lambda r: setattr(r, "features", _with(r, 3, np.nan)), "features: row 0: feature"),
    (lambda r: setattr(r, "features", _with(r, 3, -1.0)), "features: row 0: feature"),
    (lambda r: r.ClearField("device_kinds"), "device_kinds has 0 entries"),
    (lambda r: r.device_index.__setitem__(0, 1), "device_index[0]=1, must be 0 to 0"),
    (lambda r: r.device_index.append(0), "device_index has 2 entries, must have one for each of 1"),
    (lambda r: r.precisions.__setitem__(0, 77), "precisions[0]=77, must be 0 to 4"),
    (lambda r: r.iterations.__setitem__(0, 0), "iterations[0]=0, must be >= 1"),
]


def _with(request, column, value):
    row = np.frombuffer(request.features, "<f4").copy()
    row[column] = value
    return row.tobytes()


@pytest.mark.parametrize(("change", "said"), BAD_MATRICES, ids=[said for _, said in BAD_MATRICES])
def test_an_invalid_matrix_is_rejected(stub, job, cpu, change, said):
    request = wire_matrix.write_matrix([Placement(job(), cpu)], schema_hash())
    change(request)
    if len(request.features) > 4 * 1024 * 1024:
        pytest.skip("gRPC's own limit")
    code, details = status_of(lambda: stub.PredictMatrix(request, timeout=5))
    assert (code, details[: len(said)]) == (Code.INVALID_ARGUMENT, said)
    assert len(columns("full")) * 4 <= len(request.features) or "features" in details


# Streams ---------------------------------------------------------------------------------------


def test_an_abandoned_stream_leaves_nothing_behind(stub, server, job):
    def waiting():
        tasks = asyncio.all_tasks(server_loop())
        return sum("Event.wait" in repr(task.get_coro()) for task in tasks)

    before = waiting()
    for _ in range(20):
        call = stub.PredictStream(one_request_without_end(job))
        next(call)
        call.cancel()
    wait_until(lambda: waiting() <= before)


def one_request_without_end(job):
    yield pb.PredictStreamRequest(request_id=1, predict=request_of(job, jobs=1))
    time.sleep(2)


def test_a_stream_responds_in_order_and_survives_errors(stub, job):
    good = request_of(job)
    bad = pb.PredictRequest(devices=good.devices)
    pair = pb.PredictInterferenceRequest(
        jobs=good.jobs,
        devices=good.devices,
        colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)],
    )
    large = pb.PredictRequest(jobs=good.jobs, devices=[pb.Device(kind="cpu-2")] * 200)
    questions = [
        pb.PredictStreamRequest(request_id=7, predict=good),
        pb.PredictStreamRequest(request_id=8, predict=bad),
        pb.PredictStreamRequest(request_id=9, predict_interference=pair),
        pb.PredictStreamRequest(request_id=10),
        pb.PredictStreamRequest(request_id=11, predict=large),
        pb.PredictStreamRequest(predict=good),
    ]
    answers = list(stub.PredictStream(iter(questions), timeout=20))

    assert [a.request_id for a in answers] == [7, 8, 9, 10, 11, 0]
    assert [a.WhichOneof("body") for a in answers] == [
        "predict", "error", "predict_interference", "error", "predict", "predict",
    ]  # fmt: skip
    assert answers[0].predict == stub.Predict(good, timeout=5)
    assert answers[2].predict_interference == stub.PredictInterference(pair, timeout=5)
    assert answers[1].error.message.startswith("jobs has 0 entries")
    assert answers[3].error.grpc_status_code == Code.INVALID_ARGUMENT.value[0]
    assert len(answers[4].predict.forecasts) == 600


# Reports ---------------------------------------------------------------------------------------


@pytest.fixture
def reporting(release, tmp_path):
    log = tmp_path / "outcomes" / "log.db"
    with (
        start_server(release, Options(port=0, outcomes=log)) as server,
        PresageClient(server.target) as client,
    ):
        yield client, log, server.metrics.registry.get_sample_value


def test_valid_outcomes_are_stored_once_and_the_others_get_errors(reporting, job, cpu):
    client, log, _ = reporting
    bad = Outcome("bad", job(), cpu, failure="exploded")
    rows = [Outcome(f"key-{i}", job(f"job-{i}"), cpu, runtime_s=2.5) for i in range(3)]

    first = client.report([rows[0], bad, rows[1]])
    again = client.report([rows[1], rows[2], rows[2]])

    assert (first.accepted, first.duplicates) == (2, 0)
    assert list(first.refused) == [1]
    assert str(first.refused[1]).startswith("outcomes[1].failure is not known; use ''")
    assert (again.accepted, again.duplicates) == (1, 2)
    kept = list(read_outcomes(log))
    assert [row.idempotency_key for row in kept] == ["key-0", "key-1", "key-2"]
    outcome = pb.Outcome.FromString(kept[0].message)
    assert wire_values.read_job(outcome.job, "job") == job("job-0")
    assert outcome.runtime_s == 2.5
    assert not outcome.HasField("step_time_median_s")
    assert [row.position for row in read_outcomes(log, after=kept[1].position)] == [
        kept[2].position
    ]


def test_a_reused_key_with_other_content_is_not_a_duplicate(reporting, job, cpu):
    client, log, _ = reporting
    client.report([Outcome("job-17", job(), cpu, runtime_s=1.0)])
    other = Outcome("job-17", job("of another cluster"), cpu, runtime_s=9.0)

    reported = client.report([Outcome("job-18", job(), cpu, runtime_s=1.0), other])

    assert (reported.accepted, reported.duplicates, list(reported.refused)) == (1, 0, [1])
    with pytest.raises(InvalidJobError, match=r"outcomes\[0\]\.idempotency_key belongs to another"):
        client.report([other])
    assert len(list(read_outcomes(log))) == 2


BAD_OUTCOMES = [
    ({"idempotency_key": ""}, r"outcomes\[0\]\.idempotency_key is empty; use a unique key"),
    ({"idempotency_key": "k" * 257}, "idempotency_key has 257 characters"),
    ({"runtime_s": None}, r"outcomes\[0\] has no measurement; give one of"),
    ({"runtime_s": -1.0}, r"runtime_s=-1\.0, must be a finite number >= 0"),
    ({"step_time_median_s": float("nan")}, "step_time_median_s=nan"),
    ({"compute_utilization": 1.5}, r"compute_utilization=1\.5, must be .* <= 1"),
    ({"memory_peak_bytes": -5}, r"memory_peak_bytes=-5"),
    ({"finished_at_unix_s": float("inf")}, "finished_at_unix_s=inf"),
]


@pytest.mark.parametrize(("change", "said"), BAD_OUTCOMES, ids=[str(c) for c, _ in BAD_OUTCOMES])
def test_an_impossible_outcome_is_rejected(reporting, job, cpu, change, said):
    client, log, _ = reporting
    fields = {"idempotency_key": "key", "job": job(), "device": cpu, "runtime_s": 1.0} | change
    with pytest.raises(InvalidJobError, match=said):
        client.report([Outcome(**fields)])
    assert list(read_outcomes(log)) == []


def test_outcomes_are_compared_with_their_forecasts(reporting, job, cpu):
    client, _, sample = reporting
    (forecast,) = client.predict([Placement(job(), cpu)])
    assert forecast.step_time_s.in_domain
    step_s = forecast.step_time_s.median
    client.report(
        [
            Outcome("as forecast", job(), cpu, step_time_median_s=step_s),
            Outcome("slower", job(), cpu, step_time_median_s=100 * step_s),
            Outcome("colocated", job(), cpu, step_time_median_s=9 * step_s,
                    colocated_jobs=((job("other"), Share(0.5, "time-slice")),)),
            Outcome("failed", job(), cpu, failure="out-of-memory"),
        ]
    )  # fmt: skip
    labels = {"quantity": "step_time_s"}
    wait_until(lambda: sample("presage_outcome_ratio_count", labels) == 2)
    assert sample("presage_outcome_in_interval_total", labels | {"in_interval": "true"}) == 1
    assert sample("presage_outcome_in_interval_total", labels | {"in_interval": "false"}) == 1
    assert sample("presage_outcome_ratio_sum", labels) == pytest.approx(101)

    # What is sent again, and what is refused, is not compared again.
    again = Outcome("as forecast", job(), cpu, step_time_median_s=step_s)
    other = Outcome("slower", job(), cpu, step_time_median_s=step_s)
    client.report([again, other, Outcome("third", job(), cpu, step_time_median_s=step_s)])
    wait_until(lambda: sample("presage_outcome_ratio_count", labels) == 3)
    with pytest.raises(InvalidJobError):
        client.report([other])
    assert sample("presage_outcomes_total", {"result": "rejected"}) == 2
    assert sample("presage_outcome_ratio_count", labels) == 3


def test_errors_name_the_co_located_job_of_an_outcome(release, job, cpu, tmp_path):
    members = ((job("a"), Share(0.5)), (job("b"), Share(0.5)))
    report = wire_outcomes.write_report(
        [Outcome(str(i), job(), cpu, runtime_s=1.0, colocated_jobs=members) for i in range(4)]
    )
    report.outcomes[1].job.ClearField("op_stats")
    report.outcomes[2].colocated_jobs[1].job.batch_size = 0
    with (
        start_server(release, Options(port=0, outcomes=tmp_path / "log.db")) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        answer = pb_grpc.PredictionServiceStub(channel).ReportOutcomes(
            report, timeout=10, metadata=own_metadata(server)
        )
    assert (answer.accepted, [row.index for row in answer.rejected]) == (2, [1, 2])
    assert answer.rejected[0].error.message.startswith("outcomes[1].job: no operator")
    message = answer.rejected[1].error.message
    assert message.startswith("outcomes[2].colocated_jobs[1].job.batch_size=0")


def test_a_large_report_does_not_block_other_requests(release, job, cpu, tmp_path):
    """It is read in a thread: the longest wait is far shorter than the report's own time."""
    rows = replace(job(), op_stats=job().op_stats * 16)
    report = wire_outcomes.write_report(
        [Outcome(str(i), rows, cpu, runtime_s=1.0) for i in range(1024)]
    )
    threads = []
    with (
        start_server(release, Options(port=0, outcomes=tmp_path / "log.db")) as server,
        grpc.insecure_channel(server.target) as channel,
        pytest.MonkeyPatch.context() as patch,
    ):
        read = wire_outcomes.read_outcomes

        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return read(*args)

        patch.setattr(wire_outcomes, "read_outcomes", noted)
        stub, own = pb_grpc.PredictionServiceStub(channel), own_metadata(server)
        assert stub.ReportOutcomes(report, timeout=30, metadata=own).accepted == 1024
        small = pb.ReportOutcomesRequest(outcomes=report.outcomes[:1])
        assert stub.ReportOutcomes(small, timeout=30, metadata=own).duplicates == 1
    assert threads[0].startswith("presage-batch")
    assert threads[1] == "presage-server"


def test_a_server_without_an_outcome_log_rejects_reports(client, job, cpu):
    from presage.errors import ServiceError

    with pytest.raises(ServiceError, match="has no outcome log; start it with --outcomes"):
        client.report([Outcome("key", job(), cpu, runtime_s=1.0)])


# Rubbish ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["Predict", "PredictInterference", "PredictMatrix", "GetRelease", "ReportOutcomes"]
)
def test_malformed_bytes_are_an_invalid_argument(server, method):
    with grpc.insecure_channel(server.target) as channel:
        call: Any = channel.unary_unary(f"/presage.v1.PredictionService/{method}")
        code, details = status_of(
            lambda: call(b"\xff" * 100, timeout=5, metadata=own_metadata(server))
        )
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith("100 bytes are not a serialized presage.v1.")
