import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.columns.schema import FEATURE_SETS, columns, matrix, schema_hash
from presage.features.device.device import Share
from presage.features.graph.op_kinds import PUBLISHED_KINDS
from presage.features.placement import Placement
from tests.features.examples import device, features, node


def published(*nodes, **changes) -> dict[str, float]:
    row = matrix([Placement(features(*nodes, **changes), device())], "published")[0]
    return dict(zip(columns("published"), row, strict=True))


def test_f1_the_fixed_table_has_the_eleven_published_operators_in_order():
    names = [c.removesuffix(".input_elements_max") for c in columns("published")[:11]]

    assert names == [
        "AddV2", "BiasAdd", "BiasAddGrad", "Mul", "Conv2D", "Concat", "Softmax", "Relu",
        "MaxPool", "AvgPool", "MatMul",
    ]  # fmt: skip
    assert tuple(names) == PUBLISHED_KINDS


def test_f1_an_absent_operator_is_0():
    assert published(node("MatMul"))["Conv2D.input_elements_max"] == 0


def test_f1_an_operator_that_occurs_more_than_once_keeps_the_largest_input():
    found = published(
        node("Conv2D", input_elements=300), node("Conv2D", input_elements=700), node("MatMul")
    )

    assert found["Conv2D.input_elements_max"] == 700
    assert found["MatMul.input_elements_max"] == 100


def test_f1_the_largest_input_counts_in_any_phase():
    found = published(node("Relu", input_elements=5), node("Relu", phase="backward"))

    assert found["Relu.input_elements_max"] == 100


def test_f2_batch_size_iterations_and_input_size_are_the_execution_features():
    found = published(batch_size=64, iterations=40, input_elements=12)

    assert (found["batch_size"], found["iterations"], found["input_elements"]) == (64, 40, 12)


def test_f3_the_example_device_is_capability_7_memory_32_cores_2880():
    found = published()

    assert (found["compute_capability"], found["memory_gb"], found["cores"]) == (7, 32, 2880)


def test_a_published_sample_is_dag_then_execution_then_hardware():
    assert columns("published")[11:] == [
        "batch_size", "iterations", "input_elements", "compute_capability", "memory_gb", "cores",
    ]  # fmt: skip


def test_the_full_set_does_not_depend_on_iterations():
    few, many = (matrix([Placement(features(iterations=n), device())], "full") for n in (1, 10**6))

    assert np.array_equal(few, many)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_features_are_finite_and_columns_are_unique(feature_set):
    names = columns(feature_set)
    row = matrix([Placement(features(node(flops=0, bytes_moved=0)), device())], feature_set)

    assert len(set(names)) == len(names)
    assert np.isfinite(row).all()


def test_the_two_sets_have_different_hashes():
    assert schema_hash("full") != schema_hash("published")


@given(st.floats(0.05, 1.0))
def test_a_smaller_share_is_never_faster(fraction):
    placements = [Placement(features(), device(), Share(f, "mig")) for f in (fraction, 1.0)]
    roofline_s = matrix(placements, "full")[:, columns("full").index("roofline_s")]

    assert roofline_s[0] >= roofline_s[1]
