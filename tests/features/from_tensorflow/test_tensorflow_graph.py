"""FLOPs of TensorFlow graphs against counts by hand, and files of the real TensorFlow."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from presage.errors import GraphError
from presage.features.from_onnx.graph import read_onnx
from presage.features.from_tensorflow.cost import COUNTS
from presage.features.from_tensorflow.graph import read_tensorflow
from presage.features.from_tensorflow.shapes.folding import VIEWS
from presage.features.from_tensorflow.shapes.lists import LIST_RULES
from presage.features.from_tensorflow.shapes.rules import RULES
from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_kinds import (
    OP_KINDS,
    TENSORFLOW_FREE,
    TENSORFLOW_KINDS,
    tensorflow_kind,
)
from presage.features.graph.roofline import MATRIX_KINDS
from tests.features.from_tensorflow.tensorflow_examples import (
    const,
    flat,
    function,
    graph,
    node,
    placeholder,
    save,
    weight,
)

REAL = Path(__file__).parent / "files"
BATCH = 4


def read(tmp_path, *nodes, functions=(), **options):
    path = save(tmp_path, graph(*nodes, functions=functions))
    return read_tensorflow(path, **{"batch_size": BATCH, "training": False, **options})


def flops(graph, kinds=MATRIX_KINDS, phase=""):
    return sum(n.flops * n.count for n in graph.nodes if n.kind in kinds and phase in ("", n.phase))


def only(graph, kind):
    (found,) = [n for n in graph.nodes if n.kind == kind]
    return found


def dense(name, source, rows, columns):
    return flat(
        weight(f"{name}/kernel", rows, columns),
        weight(f"{name}/bias", columns),
        node(f"{name}/product", "MatMul", source, f"{name}/kernel/read"),
        node(name, "BiasAdd", f"{name}/product", f"{name}/bias/read"),
    )


def perceptron():
    return flat(
        placeholder("x", None, 20),
        dense("hidden", "x", 20, 30),
        node("relu", "Relu", "hidden"),
        dense("logits", "relu", 30, 5),
    )


def test_a_perceptron_by_hand(tmp_path):
    found = read(tmp_path, perceptron())

    assert flops(found) == 2 * BATCH * (20 * 30 + 30 * 5)
    assert found.parameters == 20 * 30 + 30 + 30 * 5 + 5
    assert found.input_elements == 20
    assert {n.kind for n in found.nodes} == {"BiasAdd", "MatMul", "Relu"}
    assert only(found, "Relu").bytes_moved == 4 * BATCH * (30 + 30)


def test_the_input_of_an_operator_counts_data_and_not_weights(tmp_path):
    found = read(tmp_path, placeholder("x", None, 20), dense("y", "x", 20, 30))
    product = only(found, "MatMul")

    assert product.input_elements == BATCH * 20
    assert product.parameters == 20 * 30
    assert product.bytes_moved == 4 * (BATCH * 20 + 20 * 30 + BATCH * 30)


def test_a_graph_without_gradients_is_trained_by_the_general_rules(tmp_path):
    found = read(tmp_path, perceptron(), training=True, optimizer="adam")

    # The first product's data needs no gradient.
    assert flops(found, phase="backward") == 2 * BATCH * (20 * 30 + 2 * 30 * 5)
    assert {n.phase for n in found.nodes} == {"forward", "backward", "optimizer"}
    assert found.memory.optimizer_state_bytes == 2 * 4 * found.parameters


@pytest.mark.parametrize(
    ("padding", "stride", "dilation", "side"),
    [("SAME", 1, 1, 15), ("SAME", 2, 1, 8), ("VALID", 1, 1, 13), ("VALID", 2, 1, 7),
     ("VALID", 1, 2, 11), ("SAME", 1, 2, 15)],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_convolution_by_hand(tmp_path, padding, stride, dilation, side, layout):
    def per_axis(size):
        return [1, size, size, 1] if layout == "NHWC" else [1, 1, size, size]

    image = (15, 15, 3) if layout == "NHWC" else (3, 15, 15)
    found = read(
        tmp_path,
        placeholder("x", None, *image),
        weight("k", 3, 3, 3, 8),
        node("y", "Conv2D", "x", "k/read", padding=padding, data_format=layout,
             strides=per_axis(stride), dilations=per_axis(dilation)),
    )  # fmt: skip

    assert only(found, "Conv2D").output_elements == BATCH * side * side * 8
    assert flops(found) == 2 * BATCH * side * side * 8 * (3 * 3 * 3)


def test_a_convolution_with_explicit_padding_and_groups(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 10, 10, 6),
        weight("k", 3, 3, 2, 9),  # 3 groups of 2 channels
        node("y", "Conv2D", "x", "k/read", padding="EXPLICIT", strides=[1, 1, 1, 1],
             explicit_paddings=[0, 0, 1, 2, 0, 0, 0, 0]),
    )  # fmt: skip

    assert flops(found) == 2 * BATCH * (11 * 8) * 9 * (3 * 3 * 2)


def test_a_depthwise_convolution_by_hand(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 8, 8, 6),
        weight("k", 3, 3, 6, 2),
        node("y", "DepthwiseConv2dNative", "x", "k/read", padding="SAME", strides=[1, 2, 2, 1]),
    )

    assert flops(found) == 2 * BATCH * (4 * 4) * 12 * (3 * 3)


def test_a_transposed_convolution_is_a_forward_operator(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 4, 4, 6),
        node("shape", "Shape", "x", out_type="DT_INT32"),
        *(const(f"at{i}", [i]) for i in (0, 1)),
        node("batch", "StridedSlice", "shape", "at0", "at1", "at1", shrink_axis_mask=1),
        *(const(f"size{i}", np.int32(n)) for i, n in enumerate((8, 8, 5))),
        node("sizes", "Pack", "batch", "size0", "size1", "size2"),
        weight("k", 2, 2, 5, 6),
        node("y", "Conv2DBackpropInput", "sizes", "k/read", "x", padding="VALID",
             strides=[1, 2, 2, 1]),
    )  # fmt: skip
    transposed = only(found, "Conv2D")

    assert transposed.output_elements == BATCH * 8 * 8 * 5
    assert transposed.flops == 2 * (BATCH * 4 * 4 * 6) * (2 * 2 * 5)
    assert transposed.phase == "forward"


@pytest.mark.parametrize(
    ("op", "attributes", "left", "right", "products"),
    [
        ("MatMul", {"transpose_a": True}, (7, BATCH), (7, 5), BATCH * 7 * 5),
        ("MatMul", {"transpose_b": True}, (BATCH, 7), (5, 7), BATCH * 7 * 5),
        ("BatchMatMulV2", {"adj_y": True}, (BATCH, 3, 6, 7), (BATCH, 3, 5, 7), BATCH * 630),
        ("BatchMatMulV2", {}, (BATCH, 3, 6, 7), (7, 5), BATCH * 630),
        ("Einsum", {"equation": "abc,cde->abde"}, (BATCH, 6, 7), (7, 2, 5), BATCH * 6 * 7 * 10),
        ("Einsum", {"equation": "...ij,...jk->...ik"}, (BATCH, 6, 7), (BATCH, 7, 5), BATCH * 210),
    ],
)  # fmt: skip
def test_products_by_hand(tmp_path, op, attributes, left, right, products):
    found = read(
        tmp_path,
        placeholder("x", *left),
        placeholder("w", *right),
        node("y", op, "x", "w", **attributes),
        node("z", "Relu", "y"),
        batch_size=left[0],
    )

    assert flops(found) == 2 * products
    assert only(found, "Relu").input_elements == only(found, "MatMul").output_elements


# What is not multiplied.


def test_pools_and_a_batch_norm_have_the_shapes_of_their_windows(tmp_path):
    window = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1]}
    found = read(
        tmp_path,
        placeholder("x", None, 16, 16, 6),
        *(weight(name, 6) for name in ("scale", "offset", "mean", "variance")),
        node("bn", "FusedBatchNormV3", "x", *(f"{n}/read" for n in
             ("scale", "offset", "mean", "variance")), is_training=False),
        node("max", "MaxPool", "bn", padding="VALID", **window),
        node("avg", "AvgPool", "max", padding="SAME", **window),
        const("axes", [1, 2]),
        node("mean_of", "Mean", "avg", "axes"),
    )  # fmt: skip
    pools = {n.op: n.output_elements for n in found.nodes}

    assert pools["tensorflow.MaxPool"] == BATCH * 7 * 7 * 6
    assert pools["tensorflow.AvgPool"] == BATCH * 4 * 4 * 6
    assert pools["tensorflow.Mean"] == BATCH * 6
    assert found.parameters == 12  # the running mean and variance are not trained


def test_shapes_follow_views_and_arithmetic_on_shapes(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 6, 4),
        node("shape", "Shape", "x"),
        *(const(f"at{i}", [i]) for i in range(4)),
        node("batch", "StridedSlice", "shape", "at0", "at1", "at1", shrink_axis_mask=1),
        node("rest", "StridedSlice", "shape", "at1", "at3", "at1"),
        const("zero", np.int32(0)),
        node("width", "Prod", "rest", "zero"),
        node("target", "Pack", "batch", "width"),
        node("flat", "Reshape", "x", "target"),
        const("perm", [1, 0]),
        node("turned", "Transpose", "flat", "perm"),
        node("joined", "ConcatV2", "turned", "turned", "zero"),
        node("parts", "Split", "zero", "joined", num_split=3),
        node("stacked", "Pack", "parts:1", "parts:2", axis=1),
        node("squared", "Square", "stacked"),
    )

    assert only(found, "Elementwise").input_elements == (2 * 6 * 4 // 3) * 2 * BATCH
    assert {n.op for n in found.nodes} >= {"tensorflow.Transpose", "tensorflow.ConcatV2"}
    assert not {n.op for n in found.nodes} & {"tensorflow.Prod", "tensorflow.StridedSlice"}


def test_an_unknown_operator_is_counted_and_keeps_the_shape_of_its_first_input(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 6),
        node("q", "Quaternion", "x"),
        node("y", "Relu", "q:1"),
    )

    assert found.unknown_ops == {"tensorflow.Quaternion": 1}
    assert only(found, "Relu").input_elements == BATCH * 6


def test_shapes_in_the_file_replace_a_missing_rule(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 6),
        node("q", "Quaternion", "x", _output_shapes=[(None, 9)]),
        node("y", "Relu", "q"),
    )

    assert only(found, "Relu").input_elements == BATCH * 9


def test_an_add_of_a_vector_of_weights_is_a_bias(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 6),
        weight("b", 6),
        node("y", "AddV2", "x", "b/read"),
        training=True,
    )

    assert {n.kind for n in found.nodes} == {"BiasAdd", "BiasAddGrad", "Update"}


def test_weights_of_a_frozen_graph_are_its_constants(tmp_path):
    found = read(
        tmp_path,
        placeholder("x", None, 20),
        const("w", np.ones((20, 30), np.float32)),
        const("half", np.float32(0.5)),
        node("product", "MatMul", "x", "w"),
        node("y", "Mul", "product", "half"),
    )

    assert found.parameters == 20 * 30
    assert only(found, "MatMul").input_elements == BATCH * 20
    assert only(found, "Mul").parameters == 0


# A training graph: taken as it is.


def training_graph():
    """Return softmax regression with Adam as TensorFlow 1 writes it, saver included."""
    adam = ["w", "m", "v", *["rate"] * 6, "gradients/product_grad/MatMul_1"]
    return flat(
        placeholder("x", None, 20),
        placeholder("labels", None, dtype="DT_INT32"),
        weight("w", 20, 5),
        node("m", "VarHandleOp", shape=(20, 5), dtype="DT_FLOAT"),
        node("v", "VarHandleOp", shape=(20, 5), dtype="DT_FLOAT"),
        const("rate", np.float32(0.1)),
        const("sizes", [20, 5]),
        node("init", "RandomUniform", "sizes", dtype="DT_FLOAT"),
        node("w/Assign", "AssignVariableOp", "w", "init"),
        node("product", "MatMul", "x", "w/read"),
        node("loss", "SparseSoftmaxCrossEntropyWithLogits", "product", "labels"),
        node("gradients/mul", "Mul", "loss:1", "rate"),
        node("gradients/product_grad/MatMul_1", "MatMul", "x", "gradients/mul", transpose_a=True),
        node("Adam/update_w", "ResourceApplyAdam", *adam, "^loss"),
        node("save/name", "Placeholder", shape=(), dtype="DT_STRING"),
        node("save/SaveV2", "SaveV2", "save/name", "w/read"),
    )


def test_a_training_graph_is_used_unchanged(tmp_path):
    found = read(tmp_path, training_graph(), training=True, optimizer="sgd")
    update = only(found, "Update")

    assert flops(found, phase="forward") == flops(found, phase="backward") == 2 * BATCH * 20 * 5
    assert (update.phase, update.op) == ("optimizer", "tensorflow.ResourceApplyAdam")
    assert update.input_elements == update.parameters == update.output_elements == 100
    assert update.bytes_moved == 4 * (100 * 7 + 6)
    assert only(found, "Softmax").phase == "forward"
    assert found.unknown_ops == {}  # nothing of the initializer, nothing of the saver


def test_optimizer_state_is_not_a_parameter_and_labels_are_not_an_input(tmp_path):
    found = read(tmp_path, training_graph(), training=True)

    assert found.parameters == 100
    assert found.input_elements == 20
    assert found.memory.parameter_bytes == found.memory.gradient_bytes == 400
    assert found.memory.optimizer_state_bytes == 800
    assert found.memory.batch_bytes == BATCH * 4 * (20 + 1)
    assert found.peak_live_bytes == found.memory.peak_bytes


def test_a_training_graph_without_training_is_its_forward_pass(tmp_path):
    found = read(tmp_path, training_graph(), training=False)

    assert {n.phase for n in found.nodes} == {"forward"}
    assert flops(found) == 2 * BATCH * 20 * 5


def test_every_operator_of_the_table_has_a_shape_and_every_product_a_cost():
    products = {op for op, kind in TENSORFLOW_KINDS.items() if kind in MATRIX_KINDS}

    assert set(TENSORFLOW_KINDS.values()) <= set(OP_KINDS)
    assert set(TENSORFLOW_KINDS) <= {*RULES, *VIEWS, *LIST_RULES}
    assert products <= set(COUNTS)
    assert not TENSORFLOW_FREE & set(TENSORFLOW_KINDS)


@pytest.mark.parametrize(
    ("op", "kind"),
    [("Conv2DBackpropFilter", "Conv2D"), ("AvgPoolGrad", "AvgPool"), ("ReluGrad", "Relu"),
     ("ConcatV2", "Concat"), ("ApplyMomentum", "Update"), ("ResourceSparseApplyAdam", "Update"),
     ("AssignAddVariableOp", "Update"), ("ScatterNd", "Embedding"), ("Quaternion", "Other")],
)  # fmt: skip
def test_gradients_and_updates_have_the_published_names(op, kind):
    assert tensorflow_kind(op) == kind


# Functions and loops.


def test_a_function_is_inlined_at_its_call(tmp_path):
    body = function(
        "body", ["a", "w"],
        node("read", "ReadVariableOp", "w", dtype="DT_FLOAT"),
        node("product", "MatMul", "a", "read:value:0"),
        node("parts", "TopKV2", "product:product:0", "k:output:0"),
        const("k", np.int32(3)),
        node("y", "Relu", "parts:values:0"),
        returns={"out": "y:activations:0"},
    )  # fmt: skip
    outer = function(
        "outer", ["a", "w"],
        node("inner", "StatefulPartitionedCall", "a", "w", f="body"),
        returns={"out": "inner:output:0"},
    )  # fmt: skip
    found = read(
        tmp_path,
        placeholder("x", None, 20),
        weight("w", 20, 30),
        node("call", "PartitionedCall", "x", "w", f="outer"),
        node("z", "Sigmoid", "call"),
        functions=[body, outer],
    )

    assert flops(found) == 2 * BATCH * 20 * 30
    assert only(found, "Elementwise").input_elements == BATCH * 3
    assert found.parameters == 600


def loop(rounds):
    body = function(
        "body", ["i", "most", "h", "w"],
        node("one", "Const", value=np.array(1, np.int32)),
        node("next", "AddV2", "i", "one:output:0", T="DT_INT32"),
        node("read", "ReadVariableOp", "w", dtype="DT_FLOAT"),
        node("h2", "MatMul", "h", "read:value:0"),
        returns={"i": "next:z:0", "most": "most", "h": "h2:product:0", "w": "w"},
    )  # fmt: skip
    nodes = flat(
        placeholder("x", None, 20),
        weight("w", 20, 20),
        const("zero", np.int32(0)),
        const("most", np.int32(rounds)),
        node("steps/while", "While", "zero", "most", "x", "w", body="body", cond="body"),
        node("y", "Relu", "steps/while:2"),
    )
    return nodes, [body]


def test_operators_in_a_loop_count_once_per_iteration(tmp_path):
    nodes, functions = loop(7)
    forward = read(tmp_path, nodes, functions=functions)
    trained = read(tmp_path, nodes, functions=functions, training=True)

    assert flops(forward) == 7 * 2 * BATCH * 20 * 20
    # A round's data is what the round before it made: it needs a gradient.
    assert flops(trained, phase="backward") == 2 * flops(forward)


def test_a_loop_without_a_bound_needs_a_number_of_iterations(tmp_path):
    nodes, functions = loop(-1)
    with pytest.raises(GraphError, match=r"loop 'steps/while' .*pass --dim while=N"):
        read(tmp_path, nodes, functions=functions)

    assert flops(read(tmp_path, nodes, functions=functions, dims={"while": 3})) == 9600


# The real TensorFlow's files, see tensorflow/README.md.


@pytest.mark.parametrize(("name", "states"), [("training_adam.pb", 2), ("training_momentum.pb", 1)])
def test_a_real_training_graph(name, states):
    found = read_tensorflow(REAL / name, batch_size=BATCH, optimizer="sgd")
    convolutions = 2 * BATCH * (32 * 32 * 8 * 27 + 7 * 7 * 16 * 72)
    product = 2 * BATCH * 256 * 10

    assert flops(found, phase="forward") == convolutions + product
    # TensorFlow 1 computes the gradient of the images too: the rest of the step waits for it.
    assert flops(found, phase="backward") == 2 * (convolutions + product)
    assert found.parameters == 216 + 8 + 1152 + 2560 + 10
    assert found.memory.optimizer_state_bytes == states * 4 * found.parameters
    assert found.input_elements == 32 * 32 * 3
    assert found.unknown_ops == {}
    published = {"BiasAdd", "BiasAddGrad", "Conv2D", "MatMul", "MaxPool", "AvgPool", "Relu"}
    assert published <= {n.kind for n in found.nodes}


def test_a_real_frozen_network():
    found = read_tensorflow(REAL / "frozen.pb", batch_size=BATCH, training=False)
    dilated, depthwise = 16 * 16 * 8 * 27, 8 * 8 * 8 * 9
    transposed = 8 * 8 * 8 * (2 * 2 * 4)

    assert flops(found) == 2 * BATCH * (dilated + depthwise + transposed + 256 * 10)
    assert found.unknown_ops == {}


def test_a_real_saved_model():
    found = read_tensorflow(REAL / "perceptron", batch_size=BATCH, optimizer="adam")

    assert flops(found, phase="forward") == 2 * BATCH * (20 * 30 + 30 * 4)
    assert found.parameters == 20 * 30 + 30 + 30 * 4 + 4
    assert found.input_elements == 20


# The same network in three frameworks.


def network_in_torch():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
    )  # fmt: skip


def network_in_onnx(tmp_path):
    weights = {
        "k": np.zeros((8, 3, 3, 3), np.float32), "b": np.zeros(8, np.float32),
        "w": np.zeros((512, 10), np.float32), "c": np.zeros(10, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "c"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10]),
    ]
    made = helper.make_graph(
        nodes, "g", values[:1], values[1:],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def network_in_tensorflow():
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    return flat(
        placeholder("x", None, 16, 16, 3),
        weight("k", 3, 3, 3, 8),
        weight("b", 8),
        node("conv", "Conv2D", "x", "k/read", padding="SAME", strides=[1, 1, 1, 1]),
        node("bias", "BiasAdd", "conv", "b/read"),
        node("relu", "Relu", "bias"),
        node("pool", "MaxPool", "relu", **pool),
        const("sizes", [-1, 512]),
        node("flat", "Reshape", "pool", "sizes"),
        dense("y", "flat", 512, 10),
    )


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_three_frameworks_agree_on_the_products_of_a_network(tmp_path, phase):
    with torch.device("meta"):
        traced = trace_module(network_in_torch(), [torch.empty(BATCH, 3, 16, 16)])
    exported = read_onnx(network_in_onnx(tmp_path), batch_size=BATCH)
    written = read(tmp_path, network_in_tensorflow(), training=True)

    assert flops(written, phase=phase) == flops(exported, phase=phase)
    assert flops(written, phase=phase) == flops(traced, phase=phase)
    assert written.parameters == exported.parameters == traced.parameters
    assert written.input_elements == exported.input_elements == traced.input_elements
