"""The vectorized columns equal the reference, and rows are independent of each other."""

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.columns import column_plan
from presage.features.columns.placement_table import placement_table
from presage.features.columns.schema import FEATURE_SETS, columns, matrix
from presage.features.device.device import Share, catalogue
from presage.features.graph.step_memory import MEMORY_COMPONENTS
from presage.features.job.job_description import MEMORY_FORMATS, PRECISIONS
from presage.features.placement import Placement
from tests.features.columns.reference_columns import plain_row
from tests.features.examples import column, device, features, memory, node
from tests.features.random_values import DEVICES, SHARES, op_stats

OPS = op_stats(st.just(0.0) | st.floats(1e-3, 1e15))
JOBS = st.builds(
    lambda ops, **changes: replace(features(**changes), op_stats=tuple(ops)),
    st.lists(OPS, min_size=1, max_size=6),
    precision=st.sampled_from(PRECISIONS),
    memory_format=st.sampled_from(MEMORY_FORMATS),
    loads_data=st.booleans(),
    framework_version=st.sampled_from(["", "1.12.1", "2.0"]),
)
HALVES = (Share(0.5, "mps"), Share(1.0, "mps"))
PLACEMENTS = st.lists(st.builds(Placement, JOBS, DEVICES, SHARES), min_size=1, max_size=4)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@given(placements=PLACEMENTS)
def test_every_column_equals_the_reference(feature_set, placements):
    found = matrix(placements, feature_set)

    plain = [plain_row(placement, FEATURE_SETS[feature_set]) for placement in placements]
    assert found == pytest.approx(np.array(plain), rel=1e-9, abs=1e-12)


@given(PLACEMENTS, st.randoms())
def test_a_row_does_not_depend_on_other_rows(placements, random):
    together = matrix(placements)
    order = random.sample(range(len(placements)), len(placements))

    assert np.array_equal(together, np.concatenate([matrix([one]) for one in placements]))
    assert np.array_equal(together[order], matrix([placements[i] for i in order]))


@given(placements=PLACEMENTS)
def test_rows_computed_in_batches_are_the_same(placements):
    at_once = matrix(placements)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_plan, "MAX_VISITS", 3)
        assert np.array_equal(matrix(placements), at_once)
        patch.setattr("presage.features.columns.schema.TABLE_ROWS", 2)
        assert np.array_equal(matrix(placements), at_once)


@given(JOBS, st.lists(DEVICES, min_size=1, max_size=3))
def test_a_job_on_many_devices_is_in_the_table_once(one, devices):
    rows = placement_table([Placement(one, where, share) for where in devices for share in HALVES])

    assert (len(rows.jobs), len(rows.devices), len(rows)) == (1, len(devices), 2 * len(devices))
    assert rows.devices.kinds == tuple(where.kind for where in devices)


def test_values_that_depend_only_on_the_job_are_cached():
    one = features()
    first = placement_table([Placement(one, device())])
    matrix(first)

    again = placement_table([Placement(one, device(), share) for share in HALVES])
    assert again.jobs is first.jobs
    assert len(again.jobs.computed) == 1


def test_no_placements_have_no_rows():
    for feature_set in FEATURE_SETS:
        assert matrix([], feature_set).shape == (0, len(columns(feature_set)))


@pytest.mark.parametrize(
    ("change", "where", "name"),
    [
        ({}, device(peak_flops_per_s={"fp32": 5e-324}), "compute_s"),  # half of which is 0
        ({"flops": 1.7e308}, device(peak_flops_per_s={"fp32": 1e-3}), "roofline_s"),
        ({"bytes_moved": 1.7e308}, device(), "bytes_moved"),
    ],
)
def test_overflow_is_infinite_without_a_warning(change, where, name):
    both = (replace(features().op_stats[0], **change),) * 2
    rows = [Placement(replace(features(), op_stats=both), where, Share(0.5, "mps"))]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert matrix(rows)[0, columns("full").index(name)] == np.inf


def test_shares_of_zero_memory_are_nan():
    nothing = memory(**dict.fromkeys(MEMORY_COMPONENTS, 0))
    light = replace(features(node("Relu")), memory=nothing)

    assert np.isnan(column("memory_share.activation", Placement(light, device(context_bytes=0))))
    assert column("live_share.activation", Placement(light, device())) == 0


def test_a_version_of_hundreds_of_digits_is_infinite():
    late = features(framework_version="1." + "9" * 400)

    assert column("framework_release", Placement(late, device())) == np.inf


def test_computing_many_rows_takes_little_more_memory_than_their_matrix():
    large = replace(features(), op_stats=features().op_stats * 500)
    rows = placement_table([Placement(large, catalogue()["t4"])] * 2000)

    tracemalloc.start()
    try:
        found = matrix(rows)  # a million operators are looked at
        assert tracemalloc.get_traced_memory()[1] < found.nbytes + 8 * 2**20
    finally:
        tracemalloc.stop()
