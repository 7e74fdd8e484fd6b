"""The C extension and Python compute the same bits; what is not usual is left to Python."""

import dataclasses
import math

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidJobError
from presage.features.columns.placement_table import PlacementTable
from presage.features.columns.schema import matrix
from presage.features.device.device_table import device_table
from presage.features.job.job_table import job_table, operator_reader
from presage.native import compiled
from presage.serving.codec.wire_jobs import read_jobs, read_serialized_jobs
from presage.serving.codec.wire_values import write_job
from presage.serving.v1 import prediction_pb2 as pb
from tests.features.random_values import DEVICES
from tests.features.random_values import JOBS as FEATURES
from tests.serving.codec.test_wire_jobs import JOBS
from tests.serving.conftest import make_job

pytestmark = pytest.mark.skipif(
    compiled.hot_path is None, reason="the C extension is not installed: pip install -e ."
)
ARRAYS = ("precisions", "scalars", "op_counts", "op_starts", "op_classes", "op_values")


def without_extension(function, *args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "hot_path", None)
        return function(*args)


def assert_same(table, expected):
    assert table.job_ids == expected.job_ids
    for name in ARRAYS:
        assert getattr(table, name).tobytes() == getattr(expected, name).tobytes(), name
        assert getattr(table, name).dtype == getattr(expected, name).dtype, name


@given(st.lists(FEATURES, min_size=1, max_size=4))
def test_a_table_of_jobs_is_the_same(jobs):
    assert_same(job_table(jobs), without_extension(job_table, jobs))


@pytest.mark.parametrize("feature_set", ["published", "full"])
@given(
    jobs=st.lists(FEATURES, min_size=1, max_size=4),
    devices=st.lists(DEVICES, min_size=1, max_size=3),
    rows=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 2), st.floats(0, 1) | st.sampled_from([1.0, 5e-324])
        ),
        max_size=6,
    ),
)
def test_features_are_the_same_bits(feature_set, jobs, devices, rows):
    job = np.array([i % len(jobs) for i, _, _ in rows], dtype=np.intp)
    device = np.array([i % len(devices) for _, i, _ in rows], dtype=np.intp)
    share = np.array([fraction for _, _, fraction in rows], dtype=np.float64)

    def of_new_table():
        table = PlacementTable(job_table(jobs), device_table(devices), job, device, share)
        return matrix(table, feature_set)

    found, expected = of_new_table(), without_extension(of_new_table)

    np.testing.assert_array_equal(found, expected)  # NaN equals NaN, whatever its payload
    finite = np.isfinite(found)
    assert found[finite].tobytes() == expected[finite].tobytes()


@given(st.lists(JOBS, min_size=1, max_size=3))
def test_jobs_read_from_bytes_are_those_of_messages(rows):
    request = pb.PredictRequest(jobs=rows, devices=[pb.Device(kind="cpu-2")], coverage=0.9)

    found = read_serialized_jobs(request.SerializeToString())

    expected = read_jobs(request.jobs)
    if found is None:
        return
    rest, jobs = found
    assert not expected.errors
    assert_same(jobs.table, expected.table)
    assert jobs.places.tolist() == list(range(len(rows)))
    request.ClearField("jobs")
    assert pb.PredictRequest.FromString(rest) == request


def test_usual_jobs_are_read_by_the_extension():
    request = pb.PredictRequest(jobs=[write_job(make_job(f"job {i}")) for i in range(3)])

    assert read_serialized_jobs(request.SerializeToString()) is not None


def changed(message, **fields):
    for name, value in fields.items():
        setattr(message, name, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: changed(row, batch_size=0),
        lambda row: changed(row, iterations=-1),
        lambda row: changed(row, parameters=-1),
        lambda row: changed(row, precision="fp8"),
        lambda row: changed(row, memory_format="diagonal"),
        lambda row: changed(row, framework_version="main"),
        lambda row: changed(row, name="x" * 257),
        lambda row: changed(row, name="\N{SNOWMAN}"),
        lambda row: changed(row.memory, activation_bytes=-1),
        lambda row: changed(row.memory, activation_bytes=2**62),
        lambda row: row.ClearField("memory"),
        lambda row: row.ClearField("op_stats"),
        lambda row: changed(row.op_stats[0], count=0),
        lambda row: changed(row.op_stats[0], flops=math.nan),
        lambda row: changed(row.op_stats[0], bytes_moved=math.inf),
        lambda row: changed(row.op_stats[0], bytes_moved=-1.0),
        lambda row: changed(row.op_stats[0], parameters=-1),
        lambda row: changed(row.op_stats[0], kind="Conv3000"),
        lambda row: changed(row.op_stats[0], phase="sideways"),
        lambda row: row.MergeFromString(b"\xf8\x07\x01"),  # an unknown field
    ],
)
def test_an_unusual_or_invalid_job_is_left_to_python(change):
    rows = [write_job(make_job("good")), write_job(make_job("changed"))]
    change(rows[1])

    assert read_serialized_jobs(pb.PredictRequest(jobs=rows).SerializeToString()) is None


def test_later_fields_replace_earlier_ones_and_messages_are_merged():
    row = write_job(make_job("first"))
    content = b"".join(
        (
            row.SerializeToString(),
            pb.Job(job_id="second", batch_size=5).SerializeToString(),
            pb.Job(memory=pb.Memory(batch_bytes=77)).SerializeToString(),
        )
    )
    request = b"\x0a" + _varint(len(content)) + content

    found = read_serialized_jobs(request)

    assert found is not None
    assert_same(found[1].table, read_jobs(pb.PredictRequest.FromString(request).jobs).table)


@pytest.mark.parametrize("part", ["request", "job", "operator", "memory"])
def test_tags_that_protobuf_rejects_are_left_to_it(part):
    """A tag of six octets: protobuf reads at most five."""
    job = write_job(make_job("one"))
    op, memory = job.op_stats[0].SerializeToString(), job.memory.SerializeToString()
    content = {
        "request": job.SerializeToString(),
        "job": job.SerializeToString() + _tag(6, 0) + b"\x05",
        "operator": job.SerializeToString() + b"\x62" + _sized(op + _tag(4, 0) + b"\x05"),
        "memory": job.SerializeToString() + b"\x82\x01" + _sized(memory + _tag(1, 0) + b"\x05"),
    }[part]
    request = (_tag(1, 2) if part == "request" else b"\x0a") + _sized(content)

    assert read_serialized_jobs(request) is None
    with pytest.raises(DecodeError):
        pb.PredictRequest.FromString(request)


def _tag(field, wire_type):
    return bytes([field << 3 | wire_type | 0x80]) + b"\x80" * 4 + b"\x00"


def _sized(content):
    return _varint(len(content)) + content


def _varint(value):
    return bytes([*(value >> 7 * i & 0x7F | 0x80 for i in range(2)), value >> 14])


@given(data=st.data())
def test_damaged_requests_are_read_as_protobuf_reads_them(request_bytes, data):
    damaged = bytearray(request_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])

    found = read_serialized_jobs(content)

    if found is None:
        return
    rest, jobs = found
    try:
        message = pb.PredictRequest.FromString(content)
    except DecodeError:  # then the rest cannot be parsed either, and the caller parses all
        with pytest.raises(DecodeError):
            pb.PredictRequest.FromString(rest)
        return
    expected = read_jobs(message.jobs)
    assert not expected.errors
    assert_same(jobs.table, expected.table)


@pytest.fixture(scope="module")
def request_bytes():
    return pb.PredictRequest(
        jobs=[write_job(make_job("one")), write_job(make_job("two"))],
        devices=[pb.Device(kind="cpu-2")],
        coverage=0.8,
    ).SerializeToString()


def test_operators_of_an_unknown_kind_are_left_to_python():
    @dataclasses.dataclass
    class Op:
        kind: str = "Conv3000"
        phase: str = "forward"
        shape: str = ""
        flops: object = 1.0
        bytes_moved: float = 1.0
        count: int = 1
        input_elements_max: int = 1
        output_elements: int = 1

    assert compiled.hot_path is not None
    assert compiled.hot_path.read_operators(operator_reader(), [Op()]) is None
    with pytest.raises(AttributeError):
        compiled.hot_path.read_operators(operator_reader(), [object()])
    with pytest.raises(TypeError):
        compiled.hot_path.read_operators(operator_reader(), [Op(flops="many")])
    with pytest.raises(ValueError, match="PyCapsule"):
        compiled.hot_path.read_operators(None, [Op()])


def test_the_extension_can_be_disabled(monkeypatch):
    monkeypatch.setenv("PRESAGE_COMPILED", "0")

    assert compiled._load() is None


def test_an_invalid_job_has_the_message_of_python():
    row = write_job(make_job("wrong"))
    row.op_stats[0].count = 0

    (error,) = read_jobs([row]).errors.values()

    assert isinstance(error, InvalidJobError)
    assert "op_stats[0].count=0" in str(error)
