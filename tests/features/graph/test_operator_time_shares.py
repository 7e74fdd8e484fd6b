import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Share
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.op_stats import OpStats
from presage.features.job.framework_version import framework_release
from presage.features.placement import Placement
from tests.features.examples import cell_of, device, features, node

NAMES = columns("full")


def column_values(placement):
    return dict(zip(NAMES, matrix([placement])[0], strict=True))


def stats(kind, **changes):
    given = dict(
        kind=kind, phase="forward", intensity_octave=0, count=1, input_elements_max=1,
        input_elements=1, output_elements=100, flops=1e4, bytes_moved=1e3,
    )  # fmt: skip
    return OpStats(**given | changes)


@pytest.mark.parametrize("ratio", [0.01, 0.5, 2.0, 100.0])
def test_products_are_bucketed_by_compute_over_memory_time(ratio):
    bounds = [math.exp(-1.5), 1.0, math.exp(1.5)]
    expected = sum(ratio > bound for bound in bounds)

    assert cell_of(stats("MatMul"), ratio) == f"MatMul forward {expected}"


def test_grouped_convolutions_are_bucketed_by_shape():
    narrow = stats("GroupedConv2D", shape="6 channels")
    seven = stats("DepthwiseConv2D", phase="backward", shape="49 points")

    cells = [cell_of(row) for row in (narrow, seven)]
    assert cells == ["GroupedConv2D forward 6 channels", "DepthwiseConv2D backward 49 points"]


def test_ill_shaped_products_have_an_additional_share():
    aligned, odd = stats("MatMul"), stats("MatMul", shape="odd 8")
    job = features()
    both, one = (replace(job, op_stats=rows) for rows in ((aligned, odd), (aligned, aligned)))
    found, without = (
        column_values(Placement(both, device())),
        column_values(Placement(one, device())),
    )

    name = "misfit_share.MatMul odd 8"
    assert found[name] == pytest.approx(0.5 * (1 - found["overhead_share"]), rel=1e-3)
    assert {n for n in NAMES if found[n] != pytest.approx(without[n])} == {name}


@given(
    st.sampled_from(OP_KINDS),
    st.sampled_from(PHASES),
    st.floats(0, 1e12),
    st.floats(0, 1e12),
)
def test_every_operator_has_a_bucket_of_its_kind_and_phase(kind, phase, ratio, flops):
    found = cell_of(stats(kind, phase=phase, flops=flops), ratio)

    assert found.startswith(f"{kind} {phase}" if phase != "optimizer" else phase)


def test_shares_of_time_and_of_launches_add_up_to_one():
    found = column_values(
        Placement(features(node(), node("Relu"), node("Softmax")), device(), Share(0.5))
    )

    shares = sum(value for name, value in found.items() if name.startswith("time_share."))
    assert shares + found["overhead_share"] == pytest.approx(1)


def test_a_faster_device_of_the_same_ratios_has_the_same_shares():
    job = features(node(), node("Relu"))
    one = device(op_overhead_s=0.0)
    twice = device(
        op_overhead_s=0.0,
        peak_flops_per_s={name: 2 * rate for name, rate in one.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=2 * one.memory_bandwidth_bytes_per_s,
    )
    slow, fast = column_values(Placement(job, one)), column_values(Placement(job, twice))

    changed = {name for name in NAMES if slow[name] != pytest.approx(fast[name], rel=1e-2)}
    assert changed == {
        "roofline_s", "compute_s", "memory_s", "peak_flops_per_s", "memory_bandwidth_bytes_per_s"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "release"), [("1.12.1", 12), ("1.13", 13), ("2.0", 14), ("2.9.1", 23), ("", 23)]
)
def test_framework_releases_are_numbered(version, release):
    assert framework_release(version) == release
