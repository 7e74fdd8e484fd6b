import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidJobError
from presage.features.graph.op_graph import merge_equal
from presage.features.graph.op_stats import OpStats, intensity_octave, summarize
from presage.features.placement import Placement
from tests.features.examples import column, device, features, node

NODES = st.lists(
    st.builds(
        lambda kind, flops, moved, count, own: node(
            kind, flops=flops, bytes_moved=moved, count=count, parameters=own
        ),
        st.sampled_from(["MatMul", "Relu", "Conv2D"]),
        st.integers(0, 10**12),
        st.integers(1, 10**9),
        st.integers(1, 50),
        st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=20,
)


@given(NODES)
def test_statistics_preserve_sums(nodes):
    rows = summarize(nodes)

    assert sum(row.count for row in rows) == sum(n.count for n in nodes)
    assert sum(row.flops for row in rows) == pytest.approx(sum(n.count * n.flops for n in nodes))
    assert sum(row.parameters for row in rows) == sum(n.count * n.parameters for n in nodes)
    assert max(row.input_elements_max for row in rows) == 100


@given(NODES)
def test_the_roofline_of_statistics_is_within_an_octave_of_the_operator_by_operator_one(nodes):
    where = device(op_overhead_s=0.0)
    exact_s = sum(
        n.count
        * max(
            n.flops / where.flops_per_s("fp32"), n.bytes_moved / where.memory_bandwidth_bytes_per_s
        )
        for n in nodes
    )
    summed_s = column("roofline_s", Placement(features(*nodes), where))

    # The maximum of sums is at most the sum of maxima; in an octave, at least half of it.
    assert exact_s / 2 <= summed_s * (1 + 1e-9)
    assert summed_s <= exact_s * (1 + 1e-9)


@given(NODES)
def test_order_does_not_matter(nodes):
    assert summarize(nodes) == summarize(nodes[::-1])


def test_parameters_belong_to_the_operators_that_read_them():
    reads, does_not = node(parameters=30, count=2), node(phase="backward")

    assert [row.parameters for row in summarize([reads, does_not])] == [0, 60]
    assert OpStats("MatMul", "forward", 0, 1, 1, 1, 1, 1.0, 1.0).parameters == 0


def test_equal_operators_merge_into_one_with_a_count():
    assert merge_equal([node(), node(), node(count=3)]) == (node(count=5),)


@pytest.mark.parametrize(
    ("flops", "moved", "octave"), [(0, 100, -4), (100, 0, 12), (100, 100, 0), (800, 100, 3)]
)
def test_intensity_octaves(flops, moved, octave):
    assert intensity_octave(flops, moved) == octave


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Conv3000"}, "not in the op table"),
        ({"phase": "sideways"}, "phase 'sideways'"),
        ({"count": 0}, "count=0"),
        ({"flops": float("nan")}, "flops=nan"),
        ({"bytes_moved": -1.0}, "bytes_moved=-1.0"),
        ({"flops": float("inf")}, "flops=inf, must be a finite"),
        ({"flops": 10**400}, "flops=too large, must be a finite"),
        ({"count": 2**63}, "count=too large"),
        ({"input_elements_max": 2**63}, "input_elements_max=too large"),
        ({"output_elements": -1}, "output_elements=-1"),
        ({"parameters": -1}, "parameters=-1, must be a finite number >= 0"),
        ({"parameters": 2**63}, "parameters=too large"),
        ({"shape": "round"}, "shape='round', must be '' or 'odd 8' or 'narrow' or 'odd 32'; leave"),
        ({"kind": "Relu", "shape": "odd 8"}, "of Relu: shape='odd 8', must be ''"),
    ],
)
def test_the_error_of_impossible_statistics_names_the_field(change, message):
    values = dict(
        kind="MatMul", phase="forward", intensity_octave=0, count=1, input_elements_max=1,
        input_elements=1, output_elements=1, flops=1.0, bytes_moved=1.0,
    )  # fmt: skip
    with pytest.raises(InvalidJobError, match=message):
        OpStats(**(values | change))
