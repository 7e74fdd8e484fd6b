from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_stats import summarize
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS
from presage.features.graph.shape_class import SHAPES, classify_shapes
from tests.features.examples import cell_of, node

CONVOLUTIONS = st.builds(
    lambda kind, phase, length, outputs, parameters, count: node(
        kind, phase=phase, flops=2 * length * outputs, output_elements=outputs,
        parameters=parameters, count=count,
    ),
    st.sampled_from(["GroupedConv2D", "DepthwiseConv2D", "Conv2D", "MatMul", "Relu"]),
    st.sampled_from(["forward", "backward"]),
    st.integers(0, 2000),
    st.sampled_from([0, 1, 50, 100]),
    st.sampled_from([0, 64, 1000, 4096]),
    st.integers(1, 5),
)  # fmt: skip


def traced(layer: nn.Module, *shape: int):
    """Return the operators of a training step of a layer whose input needs a gradient too."""
    with torch.device("meta"):
        first = nn.PReLU()
        model = nn.Sequential(first, layer).to("meta")
        return trace_module(model, [torch.empty(shape)], optimizer="sgd").nodes


def shapes_by_phase(nodes, kind):
    found: dict[str, set[str]] = {}
    for one, shape in zip(nodes, classify_shapes(nodes), strict=True):
        if one.kind == kind:
            found.setdefault(one.phase, set()).add(shape)
    return found


@pytest.mark.parametrize(
    ("layer", "kind", "shape"),
    [
        # ResNeXt-50 32x4d, RegNetY of 24 and EfficientNet of 64 channels a group
        (nn.Conv2d(128, 128, 3, padding=1, groups=32), "GroupedConv2D", "6 channels"),
        (nn.Conv2d(144, 144, 3, 2, padding=1, groups=6), "GroupedConv2D", "27 channels"),
        (nn.Conv2d(128, 128, 3, padding=1, groups=2), "GroupedConv2D", "more"),
        (nn.Conv2d(32, 32, 3, 2, padding=1, groups=32, bias=True), "DepthwiseConv2D", "9 points"),
        (nn.Conv2d(96, 96, 7, padding=3, groups=96), "DepthwiseConv2D", "49 points"),
        (nn.Conv2d(256, 256, 9, padding=4, groups=256), "DepthwiseConv2D", "more"),
        (nn.Conv2d(64, 64, 3, padding=1), "Conv2D", ""),
        (nn.Conv2d(3, 64, 7, 2, padding=3), "Conv2D", "odd 8"),  # ResNet's stem
        (nn.Conv2d(32, 64, 3, padding=1), "Conv2D", "narrow"),
        (nn.Conv2d(40, 240, 1), "PointwiseConv2D", "odd 32"),
        (nn.Conv2d(100, 200, 1, bias=False), "PointwiseConv2D", "odd 8"),
        (nn.Conv2d(64, 256, 1), "PointwiseConv2D", ""),
    ],
)
def test_a_convolution_and_its_gradients_have_one_class(layer, kind, shape):
    nodes = traced(layer, 2, layer.in_channels, 28, 28)

    assert shapes_by_phase(nodes, kind) == {"forward": {shape}, "backward": {shape}}


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((768, 3072), ""), ((768, 1000), "odd 32"), ((768, 10), "odd 8"), ((768, 16), "narrow")],
)
def test_a_product_and_its_gradients_have_one_class(sizes, shape):
    nodes = traced(nn.Linear(*sizes), 4, sizes[0])

    assert shapes_by_phase(nodes, "MatMul") == {"forward": {shape}, "backward": {shape}}


def test_a_product_without_weights_has_no_class():
    assert classify_shapes([node("MatMul", parameters=0, flops=2 * 50 * 7)]) == [""]


def test_a_gradient_without_its_forward_operator_has_no_class():
    assert classify_shapes([node("DepthwiseConv2D", phase="backward", flops=900)]) == [""]


@given(st.lists(CONVOLUTIONS, max_size=12))
def test_a_class_belongs_to_its_kind_and_does_not_depend_on_order(nodes):
    shapes = classify_shapes(nodes)

    assert all(not s or s in SHAPES[n.kind] for n, s in zip(nodes, shapes, strict=True))
    assert classify_shapes(nodes[::-1]) == shapes[::-1]


@given(st.lists(CONVOLUTIONS, min_size=1, max_size=12))
def test_statistics_by_class_have_the_same_sums(nodes):
    sums = ("count", "input_elements", "output_elements", "flops", "bytes_moved", "parameters")

    def by_kind_and_phase(rows, weight):
        out: dict[tuple[str, str, str], float] = {}
        for row in rows:
            for name in sums:
                key = (row.kind, row.phase, name)
                value = getattr(row, name) * (1 if name == "count" else weight(row))
                out[key] = out.get(key, 0) + value
        return out

    rows = summarize(nodes)
    assert by_kind_and_phase(rows, lambda _: 1) == pytest.approx(
        by_kind_and_phase(nodes, lambda one: one.count)
    )


@pytest.mark.parametrize("groups", [2, 8, 32, 128])
def test_a_row_without_a_class_has_the_bucket_of_all_its_operators(groups):
    kind = "DepthwiseConv2D" if groups == 128 else "GroupedConv2D"
    rows = summarize(traced(nn.Conv2d(128, 128, 3, padding=1, groups=groups), 64, 128, 28, 28))
    found = [row for row in rows if row.kind == kind]

    for row in found:
        assert row.shape
        assert cell_of(replace(row, shape="")) == cell_of(row)
        assert cell_of(row) in OPERATOR_BUCKETS
    assert {row.phase for row in found} == {"forward", "backward"}
