"""FLOPs of single operators, each read from a separate file, against counts by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from presage.features.from_onnx.graph import read_onnx

BATCH = 2
INTEGERS = np.uint8  # in a shape: its numbers are bytes
SCALE = [(1,), (1, INTEGERS)]  # and zero point, of a quantized tensor


def only_operator(tmp_path, op, inputs, *, outputs=1, **attributes):
    """Return the forward node of one operator; ``inputs`` are shapes, or None for a missing one.

    An input whose shape does not begin with the batch is a weight.
    """
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)]
    out = [f"o{k}" for k in range(outputs)]
    arrays = {
        name: np.zeros([n for n in x if n is not INTEGERS], x[-1] if INTEGERS in x else np.float32)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    }
    tensors = {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}
    data = [t for t in tensors.values() if t.dims[0] == BATCH]
    graph = helper.make_graph(
        [helper.make_node(op, names, out, **attributes)],
        "g",
        [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in data],
        [helper.make_tensor_value_info(out[0], TensorProto.UNDEFINED, None)],
        [t for t in tensors.values() if t not in data],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    (node,) = read_onnx(path, batch_size=BATCH, training=False).nodes
    return node


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("bhid, bhjd -> bhij", [(2, 8, 6, 16), (2, 8, 7, 16)], 2 * 2 * 8 * 6 * 7 * 16),
        ("...ij,...jk->...ik", [(2, 9, 3, 4), (2, 9, 4, 5)], 2 * 2 * 9 * 3 * 4 * 5),
        ("...ij,jk->...ik", [(2, 9, 3, 4), (4, 5)], 2 * 2 * 9 * 3 * 4 * 5),
        ("...ij,...jk->...ik", [(2, 9, 3, 4), (2, 1, 4, 5)], 2 * 2 * 9 * 3 * 4 * 5),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("bii->b", [(2, 7, 7)], 2 * 7),
        ("bij->b", [(2, 3, 4)], 2 * 3 * 4),
    ],
)
def test_einsum_combines_every_index_with_every_other(tmp_path, equation, shapes, flops):
    found = only_operator(tmp_path, "Einsum", shapes, equation=equation)

    assert (found.kind, found.flops) == ("MatMul", flops)


def test_einsum_of_three_operands_is_of_an_unknown_kind(tmp_path):
    shapes = [(2, 3), (3, 4), (4, 5)]
    found = only_operator(tmp_path, "Einsum", shapes, equation="bi,ij,jk->bk")

    assert found.kind == "Other"


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("MatMul", [(2, 3, 4), (2, 4, 5)]),
        ("MatMulInteger", [(2, 3, 4, INTEGERS), (2, 4, 5, INTEGERS)]),
        (
            "QLinearMatMul",
            [(2, 3, 4, INTEGERS), *SCALE, (2, 4, 5, INTEGERS), *SCALE, *SCALE],
        ),
    ],
)
def test_a_matmul_costs_the_same_in_integers(tmp_path, op, inputs):
    found = only_operator(tmp_path, op, inputs)

    assert (found.kind, found.flops) == ("MatMul", 2 * (2 * 3 * 5) * 4)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Conv", [(2, 8, 10, 10), (16, 4, 3, 3)]),
        ("ConvInteger", [(2, 8, 10, 10, INTEGERS), (16, 4, 3, 3, INTEGERS)]),
        (
            "QLinearConv",
            [(2, 8, 10, 10, INTEGERS), *SCALE, (16, 4, 3, 3, INTEGERS), *SCALE, *SCALE],
        ),
    ],
)
def test_a_grouped_convolution_costs_the_same_in_integers(tmp_path, op, inputs):
    found = only_operator(tmp_path, op, inputs, group=2)

    assert (found.kind, found.flops) == ("GroupedConv2D", 2 * (2 * 16 * 8 * 8) * 4 * 9)


# Two sequences of 7 queries and 9 keys, 4 heads of 16: two products of 4 x 7 x 9 x 16.
ATTENTION_FLOPS = 2 * 2 * 2 * (4 * 7 * 9 * 16)


def test_attention_by_hand_in_four_dimensions_and_in_three(tmp_path):
    four = only_operator(tmp_path, "Attention", [(2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16)])
    three = only_operator(
        tmp_path, "Attention", [(2, 7, 64), (2, 9, 64), (2, 9, 64)], q_num_heads=4, kv_num_heads=4
    )

    assert four.kind == three.kind == "Attention"
    assert four.flops == three.flops == ATTENTION_FLOPS


def test_the_cost_of_attention_with_shared_keys_depends_on_its_queries(tmp_path):
    found = only_operator(tmp_path, "Attention", [(2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16)])

    assert found.flops == ATTENTION_FLOPS


def test_attention_reads_the_keys_of_the_past_too(tmp_path):
    past = (2, 4, 4, 16)
    found = only_operator(
        tmp_path, "Attention",
        [(2, 4, 7, 16), (2, 4, 5, 16), (2, 4, 5, 16), None, past, past], outputs=3,
    )  # fmt: skip

    assert found.flops == ATTENTION_FLOPS


def test_onnx_runtimes_attention_by_hand(tmp_path):
    separate = only_operator(
        tmp_path, "MultiHeadAttention", [(2, 7, 64), (2, 9, 64), (2, 9, 64)],
        domain="com.microsoft", num_heads=4,
    )  # fmt: skip
    fused = only_operator(
        tmp_path, "Attention", [(2, 7, 32), (32, 3 * 32)], domain="com.microsoft", num_heads=4
    )

    assert (separate.kind, separate.flops) == ("Attention", ATTENTION_FLOPS)
    assert fused.flops == 2 * 2 * 7 * 32 * 96 + 2 * 2 * 2 * (7 * 7 * 32)


def test_attention_with_packed_keys_is_of_an_unknown_kind(tmp_path):
    found = only_operator(
        tmp_path, "MultiHeadAttention", [(2, 7, 4, 3, 16)], domain="com.microsoft", num_heads=4
    )

    assert found.kind == "Other"
