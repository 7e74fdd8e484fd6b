"""The vectorized reader of jobs agrees with the reader of single jobs, errors included."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import PresageError
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import SHAPES
from presage.features.job.job_table import job_table
from presage.serving.codec import wire_values
from presage.serving.codec.wire_jobs import read_jobs
from presage.serving.v1 import prediction_pb2 as pb

LARGEST = 2**63 - 1


def usual_values(usual, *odd):
    """Return a strategy of usual values of a field, with some invalid and extreme ones."""
    return st.integers(0, 14).flatmap(lambda n: st.just(usual) if n else st.sampled_from(odd))


COUNT = usual_values(7, 0, 1, -1, LARGEST, -LARGEST - 1)
AMOUNT = usual_values(1e9, 0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308)
TEXT = usual_values("a name", "", "x" * 256, "x" * 257, "\N{SNOWMAN}" * 256)
KNOWN = [(kind, shape) for kind in OP_KINDS for shape in ("", *SHAPES.get(kind, ()))]

OPS = st.builds(
    lambda kind_and_shape, **fields: pb.OpStats(
        kind=kind_and_shape[0], shape=kind_and_shape[1], **fields
    ),
    st.sampled_from(KNOWN) | usual_values(KNOWN[0], ("Conv3000", ""), ("Relu", "odd 8"), ("", "")),
    phase=usual_values("forward", "backward", "optimizer", "sideways", ""),
    intensity_octave=st.sampled_from([-4, 0, 100]),
    count=COUNT,
    input_elements_max=COUNT,
    input_elements=COUNT,
    output_elements=COUNT,
    flops=AMOUNT,
    bytes_moved=AMOUNT,
    parameters=COUNT,
)
MEMORY = st.builds(
    pb.Memory,
    **{f"{name}_bytes": COUNT for name in ("parameter", "gradient", "optimizer_state")},
    **{f"{name}_bytes": COUNT for name in ("activation", "workspace", "batch")},
)
JOBS = st.builds(
    pb.Job,
    job_id=TEXT,
    name=TEXT,
    family=TEXT,
    framework=TEXT,
    precision=usual_values("fp32", "tf32", "fp16", "bf16", "fp64", "fp8", ""),
    batch_size=COUNT,
    iterations=COUNT,
    input_elements=COUNT,
    graph_digest=TEXT,
    parameters=COUNT,
    peak_live_bytes=COUNT,
    op_stats=st.integers(0, 14).flatmap(lambda n: st.lists(OPS, min_size=n > 0, max_size=3)),
    memory_format=usual_values("", "contiguous", "channels-last", "diagonal", "x" * 300),
    loads_data=st.booleans(),
    framework_version=usual_values(
        "", "2.13.0", "1.12+cu118", "main", "2", "2." + "9" * 254, "1." * 129
    ),
    memory=MEMORY | st.none(),
)


def one_by_one(rows):
    """Return the valid jobs, and the errors of the others by position."""
    jobs, said = [], {}
    for i, row in enumerate(rows):
        try:
            jobs.append(wire_values.read_job(row, f"jobs[{i}]"))
        except PresageError as error:
            said[i] = type(error), str(error)
    return jobs, said


@given(st.lists(JOBS, max_size=5))
def test_the_same_jobs_are_rejected_with_the_same_messages(rows):
    jobs, said = one_by_one(rows)

    found = read_jobs(rows)

    assert {i: (type(error), str(error)) for i, error in found.errors.items()} == said
    assert [i for i, place in enumerate(found.places) if place < 0] == list(said)
    kept = [place for place in found.places if place >= 0]
    assert kept == list(range(len(jobs)))
    assert_equal(found.table, job_table(jobs))


def assert_equal(table, expected):
    assert table.job_ids == expected.job_ids
    for name in ("precisions", "scalars", "op_counts", "op_starts", "op_classes", "op_values"):
        assert np.array_equal(getattr(table, name), getattr(expected, name)), name


def test_a_refused_job_leaves_the_others_in_their_order(job):
    rows = [wire_values.write_job(job(f"job {i}")) for i in range(4)]
    rows[1].op_stats[1].flops = math.nan
    rows[2].batch_size = 0

    found = read_jobs(rows, "members[{}]".format)

    assert found.table.job_ids == ("job 0", "job 3")
    assert found.places.tolist() == [0, -1, -1, 1]
    assert list(map(str, found.errors.values())) == [
        "members[1].op_stats[1].flops=nan, must be a finite number >= 0",
        "members[2].batch_size=0, must be >= 1; give the job's real batch size",
    ]


@pytest.mark.parametrize("rows_of_operators", [10_000, 10_001])
def test_operators_of_a_job_with_too_many_are_not_read(job, rows_of_operators):
    row = wire_values.write_job(job())
    first = row.op_stats[0]
    row.op_stats.extend([first] * (rows_of_operators - len(row.op_stats)))

    found = read_jobs([row])

    assert list(found.errors) == ([] if rows_of_operators == 10_000 else [0])
    assert len(found.table.op_classes) == (10_000 if rows_of_operators == 10_000 else 0)


def test_a_peak_is_summed_exactly(job):
    row = wire_values.write_job(job())
    row.memory.CopyFrom(pb.Memory(parameter_bytes=2**62, batch_bytes=2**62 - 1))
    assert not read_jobs([row]).errors

    row.memory.batch_bytes += 1  # no float64 tells this from the one before
    assert read_jobs([row]).errors


def test_a_request_without_jobs_has_an_empty_table():
    found = read_jobs([])

    assert (len(found.table), len(found.places), len(found.errors)) == (0, 0, 0)
