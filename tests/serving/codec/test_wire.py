"""Wire formats: messages round-trip, and invalid values are rejected with their path."""

import gc
import math
import re
import time
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presage.errors import InvalidJobError, UnknownDeviceError
from presage.features.colocation import Colocation
from presage.features.columns.schema import matrix
from presage.features.device.device import catalogue, known_device, similar_kinds
from presage.features.placement import Placement
from presage.serving.codec import wire_outcomes, wire_requests, wire_values
from presage.serving.v1 import prediction_pb2 as pb
from tests.features.random_values import DEVICES, JOBS, SHARES


def sent(message):
    """Return the message after a round trip over the wire."""
    return type(message).FromString(message.SerializeToString())


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.builds(Placement, JOBS, DEVICES, SHARES), min_size=1, max_size=4))
def test_placements_round_trip(placements):
    request = sent(wire_requests.write_predict(placements, 0.9))

    parsed = wire_requests.read_predict(request, NEVER)
    assert not parsed.errors
    assert same(parsed.table, placements)
    assert wire_requests.read_quantile_selection(request) == (0.9, [])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(DEVICES, st.lists(st.tuples(JOBS, SHARES), min_size=1, max_size=4))
def test_colocations_round_trip(device, members):
    jobs, of_each = zip(*members, strict=True)
    colocations = [Colocation(device, jobs, of_each), Colocation(device, jobs[:1], of_each[:1])]

    request = sent(wire_requests.write_predict_interference(colocations, 0.8))

    parsed = wire_requests.read_predict_interference(request, NEVER)
    members = [Placement(j, device, share) for j, share in zip(jobs, of_each, strict=True)]
    assert not parsed.errors
    assert parsed.sizes.tolist() == [len(members), 1]
    assert same(parsed.table, [*members, members[0]])
    assert parsed.capacities_bytes() == [float(device.memory_bytes)] * 2


def same(table, placements):
    """Return whether a table holds these placements, by features and names."""
    ids = [table.jobs.job_ids[i] for i in table.job]
    return (
        ids == [p.job.job.job_id for p in placements]
        and [table.devices.kinds[i] for i in table.device] == [p.device.kind for p in placements]
        and np.array_equal(matrix(table), matrix(placements), equal_nan=True)
    )


class Never:
    def known_device(self, kind):
        raise AssertionError(f"{kind} was looked up although its data sheet came along")

    similar_kinds = known_device


class Catalogue:
    known_device = staticmethod(known_device)
    similar_kinds = staticmethod(similar_kinds)


NEVER, CATALOGUE = Never(), Catalogue()


def without_memory(request: pb.PredictRequest) -> None:
    """Return a change that removes ``memory``, which old requests lack."""
    for row in request.jobs:
        row.ClearField("memory")


@given(JOBS)
def test_a_job_without_memory_is_read_by_its_peak(features):
    request = wire_requests.write_predict([Placement(features, catalogue()["t4"])], 0.8)
    without_memory(request)
    read = wire_values.read_job(sent(request).jobs[0], "jobs[0]")

    peak = features.memory.peak_bytes
    weights = min(4 * features.parameters, peak)
    assert astuple(read.memory) == (weights, 0, 0, 0, peak - weights, 0)
    assert read == replace(features, memory=read.memory)
    parsed = wire_requests.read_predict(sent(request), NEVER)
    assert same(parsed.table, [Placement(read, catalogue()["t4"])])


def test_the_peak_of_a_job_with_memory_is_written_but_not_read(job):
    row = wire_values.write_job(job())
    assert row.peak_live_bytes == job().memory.peak_bytes

    row.peak_live_bytes = -1
    assert wire_values.read_job(row, "jobs[0]") == job()
    row.memory.SetInParent()
    row.memory.Clear()
    assert wire_values.read_job(row, "jobs[0]").peak_live_bytes == 0


def test_a_job_of_an_old_client_lacks_parameters_shapes_and_version(job):
    row = wire_values.write_job(job())
    row.ClearField("framework_version")
    for op in row.op_stats:
        op.ClearField("parameters")
        op.ClearField("shape")

    read = wire_values.read_job(sent(row), "jobs[0]")
    assert read.job.framework_version == ""
    assert [(op.parameters, op.shape) for op in read.op_stats] == [(0, ""), (0, "")]


def test_a_job_on_many_devices_is_sent_once(job):
    same = job()

    request = wire_requests.write_predict([Placement(same, d) for d in catalogue().values()], 0.8)

    assert len(request.jobs) == 1
    assert len(request.devices) == len(catalogue())


def test_a_request_without_placements_means_every_job_on_every_device(job):
    request = pb.PredictRequest(
        jobs=[wire_values.write_job(job("a")), wire_values.write_job(job("b"))],
        devices=[pb.Device(kind="t4"), pb.Device(kind="v100")],
    )

    request.devices[1].share.fraction = 0.25
    table = wire_requests.read_predict(request, CATALOGUE).table

    met = [
        (table.jobs.job_ids[job], table.devices.kinds[device], share)
        for job, device, share in zip(table.job, table.device, table.share, strict=True)
    ]
    shares = {"t4": 1.0, "v100": 0.25}
    assert met == [(j, d, share) for j in ("a", "b") for d, share in shares.items()]
    assert wire_requests.read_quantile_selection(request) == (0.8, [])


def make_request(job, change) -> pb.PredictRequest:
    """Return a request of four jobs on two devices, changed."""
    request = pb.PredictRequest(
        jobs=[wire_values.write_job(job(f"job-{i}")) for i in range(4)],
        devices=[pb.Device(kind="v100"), wire_values.write_device(catalogue()["t4"])],
        placements=[
            pb.Placement(job_index=job, device_index=job % 2, share=pb.Share(fraction=0.5))
            for job in (3, 2, 1, 0)
        ],
    )
    change(request)
    return request


def set_to(path: str, value):
    """Return a change of one field: ``set_to("jobs.3.batch_size", 0)``."""

    def change(request):
        *way, last = path.split(".")
        for step in way:
            request = request[int(step)] if step.isdigit() else getattr(request, step)
        setattr(request, last, value)

    return change


def all_of(*changes):
    """Return a change that applies all of these in order."""

    def change(request):
        for one in changes:
            one(request)

    return change


BAD = [
    (lambda r: r.ClearField("jobs"), "jobs has 0 entries, must have 1 to 4096"),
    (lambda r: r.ClearField("devices"), "devices has 0 entries"),
    (set_to("jobs.3.batch_size", 0), "jobs[3].batch_size=0, must be >= 1"),
    (set_to("jobs.3.iterations", -5), "jobs[3].iterations=-5, must be >= 1"),
    (set_to("jobs.0.input_elements", 0), "jobs[0].input_elements=0, must be >= 1"),
    (set_to("jobs.1.parameters", -1), "jobs[1].parameters=-1, must be >= 0"),
    (
        all_of(without_memory, set_to("jobs.1.peak_live_bytes", -1)),
        "jobs[1].peak_live_bytes=-1, must be >= 0",
    ),
    (
        all_of(without_memory, set_to("jobs.1.parameters", -2)),
        "jobs[1].parameters=-2, must be >= 0",
    ),
    (
        set_to("jobs.1.memory.gradient_bytes", -1),
        "jobs[1].memory.gradient_bytes=-1, must be >= 0; "
        "use 0 for a component that the step does not have",
    ),
    (
        all_of(*(set_to(f"jobs.1.memory.{p}_bytes", 2**62) for p in ("parameter", "batch"))),
        "jobs[1]: peak_live_bytes has 64 bits, must be below 2**63",
    ),
    (
        set_to("jobs.3.framework_version", "main"),
        "jobs[3].framework_version must begin with two numbers, as 2.13.0 does",
    ),
    (set_to("jobs.3.framework_version", "2." + "1" * 255), "jobs[3].framework_version has 257 cha"),
    (set_to("jobs.2.precision", "fp8"), "jobs[2].precision is not known; use one of 'fp32'"),
    (set_to("jobs.2.name", "x" * 257), "jobs[2].name has 257 characters, at most 256"),
    (lambda r: r.jobs[2].ClearField("op_stats"), "jobs[2]: no operator statistics"),
    (set_to("jobs.0.op_stats.1.count", 0), "jobs[0].op_stats[1].count=0, must be >= 1"),
    (set_to("jobs.0.op_stats.1.flops", math.nan), "jobs[0].op_stats[1].flops=nan, must be a fin"),
    (set_to("jobs.0.op_stats.0.bytes_moved", math.inf), "jobs[0].op_stats[0].bytes_moved=inf"),
    (set_to("jobs.0.op_stats.0.flops", -1.0), "jobs[0].op_stats[0].flops=-1.0, must be a finite"),
    (set_to("jobs.0.op_stats.0.parameters", -1), "jobs[0].op_stats[0].parameters=-1, must be a f"),
    (set_to("jobs.0.op_stats.0.kind", "Conv9D"), "jobs[0].op_stats[0].kind is not known; use one"),
    (set_to("jobs.0.op_stats.0.kind", "C" * 999), "jobs[0].op_stats[0].kind is not known; use on"),
    (
        set_to("jobs.0.op_stats.0.phase", "warm"),
        "jobs[0].op_stats[0].phase is not known; use on",
    ),
    (
        set_to("jobs.0.op_stats.0.shape", "odd"),
        "jobs[0].op_stats[0].shape is not known; use on",
    ),
    (set_to("jobs.0.op_stats.0.shape", "o" * 999), "jobs[0].op_stats[0].shape is not known"),
    (
        lambda r: r.jobs[1].op_stats.extend([r.jobs[1].op_stats[0]] * 10_000),
        "jobs[1].op_stats has 10002 rows, at most 10000",
    ),
    (set_to("devices.0.kind", "v" * 300), "devices[0].kind has 300 characters"),
    (set_to("devices.1.data_sheet.memory_bytes", 0), "devices[1].data_sheet.memory_bytes=0, must"),
    (set_to("devices.1.data_sheet.cores", -1), "devices[1].data_sheet.cores=-1, must be a finite"),
    (
        set_to("devices.1.data_sheet.memory_bandwidth_bytes_per_s", math.nan),
        "devices[1].data_sheet.memory_bandwidth_bytes_per_s=nan",
    ),
    (
        set_to("devices.1.data_sheet.op_overhead_s", math.nan),
        "devices[1].data_sheet.op_overhead_s=nan, must be a finite number >= 0",
    ),
    (
        set_to("devices.1.data_sheet.context_bytes", -1),
        "devices[1].data_sheet.context_bytes=-1, must be a finite number >= 0",
    ),
    (
        set_to("devices.1.data_sheet.compute_capability", -math.inf),
        "devices[1].data_sheet.compute_capability=-inf",
    ),
    (
        lambda r: r.devices[1].data_sheet.peak_flops_per_s.update({"bf16": 0.0}),
        "devices[1].data_sheet.peak_flops_per_s['bf16']=0.0, must be a finite number > 0",
    ),
    (
        lambda r: r.devices[1].data_sheet.peak_flops_per_s.pop("fp32"),
        "devices[1].data_sheet.peak_flops_per_s has no 'fp32'",
    ),
    (
        lambda r: r.devices[1].data_sheet.peak_flops_per_s.update({str(i): 1.0 for i in range(20)}),
        "devices[1].data_sheet.peak_flops_per_s has 23 precisions, at most 16",
    ),
    (set_to("placements.0.job_index", 4), "placements[0].job_index=4, but jobs has 4 entries"),
    (set_to("placements.0.device_index", 2), "placements[0].device_index=2, but devices has 2"),
    (set_to("placements.0.share.fraction", 0.0), "placements[0].share: share 0.0 of a device"),
    (set_to("placements.0.share.fraction", math.nan), "placements[0].share: share nan"),
    (set_to("placements.0.share.fraction", 1.5), "placements[0].share: share 1.5"),
    (set_to("placements.0.share.mode", "luck"), "placements[0].share.mode is not known; use on"),
    (
        lambda r: r.placements.extend([r.placements[0]] * 4096),
        "the request asks for 4100 rows, at most 4096",
    ),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said[:60] for _, said in BAD])
def test_invalid_values_are_rejected_with_their_path_and_how_to_fix_them(job, change, said):
    assert first_error(make_request(job, change)).startswith(said)


@pytest.mark.parametrize("text", ["jobs.0.name", "jobs.0.precision", "jobs.0.op_stats.0.kind",
                                  "jobs.0.op_stats.0.shape", "jobs.0.framework_version",
                                  "devices.0.kind", "placements.3.share.mode"])  # fmt: skip
def test_errors_repeat_no_text_of_the_client(job, text):
    secret = "a-secret-of-the-user"
    change = all_of(set_to(text, secret), set_to("jobs.0.batch_size", 0))
    assert secret not in first_error(make_request(job, change))


def first_error(request) -> str:
    """Return the error of the first rejected row, or of the whole request."""
    try:
        wire_requests.count_predict(request)
        errors = wire_requests.read_predict(request, CATALOGUE).errors
    except InvalidJobError as error:
        return str(error)
    return str(errors[min(errors)])


def test_too_many_placements_are_rejected_before_any_work(job):
    request = make_request(job, lambda r: r.ClearField("placements"))
    request.devices.extend([pb.Device(kind="v100")] * 1023)

    with pytest.raises(InvalidJobError, match="asks for 4100 rows, at most 4096"):
        wire_requests.count_predict(request)


def test_a_small_request_cannot_ask_for_a_minute_of_work(job):
    request = make_request(job, lambda r: r.ClearField("placements"))
    del request.jobs[1:]
    request.jobs[0].op_stats.extend([request.jobs[0].op_stats[0]] * 9_998)
    request.devices.extend([pb.Device(kind="v100")] * 99)

    with pytest.raises(InvalidJobError, match="needs 1010000 operator rows"):
        wire_requests.read_predict(request, CATALOGUE)


def test_the_error_of_an_unknown_device_kind_names_its_path(release, job):
    request = make_request(job, set_to("devices.0.kind", "v10"))

    errors = wire_requests.read_predict(request, CATALOGUE).errors

    assert sorted(errors) == [1, 3]  # the placements on that device; the others are answered
    assert isinstance(errors[1], UnknownDeviceError)
    said = r"devices\[0\]\.kind is not known; did you mean 'v100.*data_sheet"
    assert re.match(said, str(errors[1]))


def test_many_unknown_kinds_cost_one_search(job):
    request = make_request(job, lambda r: r.ClearField("placements"))
    del request.jobs[1:]
    request.devices.extend([pb.Device(kind=f"{'x' * 200}{i}") for i in range(2000)])
    begin_s = time.monotonic()
    errors = wire_requests.read_predict(request, CATALOGUE).errors
    assert len(errors) == 2000
    assert time.monotonic() - begin_s < 2


def make_interference_request(job, change) -> pb.PredictInterferenceRequest:
    request = pb.PredictInterferenceRequest(
        jobs=[wire_values.write_job(job())],
        devices=[pb.Device(kind="v100")],
        colocations=[pb.Colocation(members=[pb.Colocation.Member()] * 2)] * 2,
    )
    change(request)
    return request


BAD_COLOCATIONS = [
    (lambda r: r.ClearField("colocations"), "colocations is empty"),
    (lambda r: r.ClearField("jobs"), "jobs has 0 entries"),
    (
        lambda r: r.colocations[1].ClearField("members"),
        "colocations[1].members has 0 jobs, must have 1 to 64",
    ),
    (
        lambda r: r.colocations[1].members.extend([pb.Colocation.Member()] * 63),
        "colocations[1].members has 65 jobs, must have 1 to 64",
    ),
    (
        set_to("colocations.1.members.1.job_index", 1),
        "colocations[1].members[1].job_index=1, but jobs has 1 entries",
    ),
    (set_to("colocations.0.device_index", 9), "colocations[0].device_index=9, but devices has 1"),
    (
        set_to("colocations.0.members.1.share.fraction", -0.5),
        "colocations[0].members[1].share: share -0.5",
    ),
    (
        lambda r: r.colocations.extend([pb.Colocation(members=[pb.Colocation.Member()] * 64)] * 64),
        "the request asks for 4100 rows, at most 4096",
    ),
]


@pytest.mark.parametrize(
    ("change", "said"), BAD_COLOCATIONS, ids=[said[:60] for _, said in BAD_COLOCATIONS]
)
def test_an_invalid_colocation_is_rejected_with_its_path(job, change, said):
    request = make_interference_request(job, change)

    try:
        wire_requests.count_predict_interference(request)
        errors = wire_requests.read_predict_interference(request, CATALOGUE).errors
        (refused,) = errors.values() if len(errors) == 1 else [errors[0]]
    except InvalidJobError as error:
        refused = error

    assert str(refused).startswith(said)


def read_in_part(job, what: str) -> object:
    """Return a request, part of which is rejected, as it is read."""
    if what == "colocations":
        together = make_interference_request(job, set_to("colocations.1.device_index", 9))
        return wire_requests.read_predict_interference(together, CATALOGUE).errors[1]
    if what == "outcomes":
        outcomes = [pb.Outcome(job=wire_values.write_job(job()), device=pb.Device(kind="v100"))] * 2
        report = pb.ReportOutcomesRequest(outcomes=outcomes)
        return wire_outcomes.read_outcomes(report, CATALOGUE.known_device)[1][0]
    change = {"jobs": set_to("jobs.0.batch_size", 0), "devices": set_to("devices.0.kind", "v10")}
    request = make_request(job, change.get(what, set_to("placements.1.device_index", 9)))
    return wire_requests.read_predict(request, CATALOGUE).errors


@pytest.mark.parametrize("what", ["jobs", "devices", "placements", "colocations", "outcomes"])
def test_a_partly_rejected_request_is_freed_after_its_response(job, what):
    read_in_part(job, what)  # what is made once and kept
    gc.collect()
    gc.disable()
    try:
        assert read_in_part(job, what)
        assert gc.collect() == 0, "it waits for Python's collector, with the whole request"
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [2**63, 1.5, "many", None])
def test_a_size_beyond_the_message_type_is_named_before_sending(job, value):
    impossible = job(parameters=100)
    object.__setattr__(impossible.memory, "workspace_bytes", value)
    if value is None:
        object.__setattr__(impossible.job, "name", "\ud800")

    with pytest.raises(InvalidJobError, match="job 'job' cannot be sent"):
        wire_values.write_job(impossible)
