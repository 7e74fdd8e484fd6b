import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from presage.errors import GraphError
from presage.features.columns.schema import matrix
from presage.features.device.device import find_device
from presage.features.from_onnx.graph import read_onnx
from presage.features.from_onnx.shapes import load_model
from presage.features.from_torch.graph import trace_module
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.placement import Placement
from presage.serving.client.job_features import from_graph

BATCH = 8


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10), nn.Softmax(-1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "network.onnx"
    torch.onnx.export(
        network().eval(), (torch.randn(2, 3, 32, 32),), path, dynamo=True, verbose=False,
        external_data=False, dynamic_shapes={"input": {0: "batch"}},
    )  # fmt: skip
    return path


def save(tmp_path, nodes, inputs, outputs, weights=(), **options):
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(w, n) for n, w in weights]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("their.own", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, **options), path)
    return path


def tensor(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def test_an_exported_model_has_the_published_features_of_the_traced_one(exported):
    read = read_onnx(exported, batch_size=BATCH, optimizer="adam")
    with torch.device("meta"):
        traced = trace_module(network(), [torch.empty(BATCH, 3, 32, 32)], optimizer="adam")
    rows = [
        matrix(
            [
                Placement(
                    from_graph(g, name="net", batch_size=BATCH, iterations=10), find_device("v100")
                )
            ],
            "published",
        )[0]
        for g in (read, traced)
    ]

    # Pooling's backward pass reads what its framework kept: indices in torch's case.
    different = [i for i, (a, b) in enumerate(zip(*rows, strict=True)) if a != b]
    assert len(different) <= 3
    assert np.allclose(rows[0], rows[1], rtol=0.5, atol=2)
    assert read.parameters == traced.parameters
    assert flops(read) == pytest.approx(flops(traced), rel=0.05)
    assert read.peak_live_bytes == pytest.approx(traced.peak_live_bytes, rel=0.35)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 10))


def normalized_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(32 * 28 * 28, 10),
    )  # fmt: skip


def transformer_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layers = kind(24, 32, 2, batch_first=True, **options)
        self.head = nn.LazyLinear(5)
        self(torch.zeros(1, 2, 24))

    def forward(self, x):
        return self.head(self.layers(x)[0])


EXPORTED = [
    (perceptron, (64,)),
    (normalized_network, (3, 32, 32)),
    (transformer_layer, (16, 64)),
    (lambda: Recurrent(nn.LSTM), (12, 24)),
    (lambda: Recurrent(nn.GRU, bidirectional=True), (12, 24)),
]


@pytest.mark.parametrize(("make", "shape"), EXPORTED)
def test_a_training_step_costs_the_same_as_the_torch_module(make, shape, tmp_path):
    module, path = make(), tmp_path / "model.onnx"
    torch.onnx.export(
        module, (torch.randn(2, *shape),), path, dynamo=True, verbose=False,
        external_data=False, dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    read = read_onnx(path, batch_size=BATCH, optimizer="adam")
    traced = trace_module(
        module.to("meta"), [torch.empty(BATCH, *shape, device="meta")], optimizer="adam"
    )

    assert read.unknown_ops == {}
    assert flops(read) == pytest.approx(flops(traced), rel=0.05)
    # The exporter folds batch norms into convolutions, and merges norms of equal weights.
    assert read.parameters == pytest.approx(traced.parameters, rel=0.01)
    assert read.peak_live_bytes == pytest.approx(traced.peak_live_bytes, rel=0.2)
    for kind in MATRIX_KINDS:
        counts = [
            sum(n.count for n in g.nodes if (n.kind, n.phase) == (kind, "forward"))
            for g in (read, traced)
        ]
        assert counts[0] == counts[1], kind


def flops(graph):
    return sum(n.flops * n.count for n in graph.nodes)


def test_without_training_there_is_a_forward_pass_only(exported):
    graph = read_onnx(exported, batch_size=BATCH, training=False)

    assert {n.phase for n in graph.nodes} == {"forward"}


def test_flops_grow_with_the_batch(exported):
    one, two = (read_onnx(exported, batch_size=b, training=False) for b in (4, 8))

    assert flops(two) == 2 * flops(one)


def test_a_matmul_and_a_transposed_convolution_by_hand(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
            helper.make_node("Flatten", ["y"], ["flat"]),
            helper.make_node("MatMul", ["flat", "m"], ["z"]),
        ],
        [tensor("x", "batch", 3, 4, 4)],
        [tensor("z", "batch", 7)],
        [("w", np.zeros((3, 5, 2, 2), np.float32)), ("m", np.zeros((5 * 64, 7), np.float32))],
    )
    by_kind = {n.kind: n for n in read_onnx(path, batch_size=2, training=False).nodes}

    assert by_kind["Conv2D"].flops == 2 * (2 * 3 * 16) * 5 * 4
    assert by_kind["MatMul"].flops == 2 * 2 * (5 * 64) * 7


def test_functions_of_the_file_are_counted_operator_by_operator(tmp_path):
    body = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    function = helper.make_function(
        "their.own", "Dense", ["a", "b"], ["d"], body, [helper.make_opsetid("", 18)]
    )
    path = save(
        tmp_path,
        [helper.make_node("Dense", ["x", "w"], ["y"], domain="their.own")],
        [tensor("x", "batch", 64)],
        [tensor("y", "batch", 128)],
        [("w", np.zeros((64, 128), np.float32))],
        functions=[function],
    )
    graph = read_onnx(path, batch_size=BATCH, training=False)

    assert {n.kind: n.flops for n in graph.nodes} == {
        "MatMul": 2 * BATCH * 64 * 128, "Relu": BATCH * 128,
    }  # fmt: skip


def test_constants_written_as_bare_numbers_fix_shapes(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("Constant", [], ["zero"], value_float=0.0),
            helper.make_node("Constant", [], ["ones"], value_ints=[1]),
            helper.make_node("Shape", ["w"], ["channels"], start=0, end=1),
            helper.make_node("Expand", ["channels", "ones"], ["width"]),
            helper.make_node("Expand", ["zero", "width"], ["bias"]),
            helper.make_node("Conv", ["x", "w", "bias"], ["y"]),
        ],
        [tensor("x", "batch", 3, 8, 8)],
        [tensor("y", "batch", 4, 6, 6)],
        [("w", np.zeros((4, 3, 3, 3), np.float32))],
    )
    (convolution,) = read_onnx(path, batch_size=BATCH, training=False).nodes

    assert convolution.flops == 2 * BATCH * 6 * 6 * 4 * 3 * 9


def test_an_lstm_by_hand(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6)],
        [tensor("x", 9, 2, 5)],
        [tensor("y", 9, 1, 2, 6)],
        [("w", np.zeros((1, 24, 5), np.float32)), ("r", np.zeros((1, 24, 6), np.float32))],
    )
    (lstm,) = read_onnx(path, batch_size=9, training=False).nodes

    assert lstm.kind == "Recurrent"
    assert lstm.flops == 2 * 9 * 2 * 24 * (5 + 6)


def test_an_lstm_without_a_used_sequence_is_still_an_lstm(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=6)],
        [tensor("x", 9, 2, 5)],
        [tensor("h", 1, 2, 6)],
        [("w", np.zeros((1, 24, 5), np.float32)), ("r", np.zeros((1, 24, 6), np.float32))],
    )
    (lstm,) = read_onnx(path, batch_size=9, training=False).nodes

    assert (lstm.kind, lstm.flops) == ("Recurrent", 2 * 9 * 2 * 24 * (5 + 6))


def test_an_unknown_operator_is_counted_and_its_successors_are_read(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("Quaternion", ["x"], ["q"], domain="their.own"),
            helper.make_node("Relu", ["q"], ["y"]),
        ],
        [tensor("x", "batch", 6)],
        [tensor("y", "batch", 6)],
    )
    graph = read_onnx(path, batch_size=4, training=False)

    assert graph.unknown_ops == {"onnx.their.own.Quaternion": 1}
    assert next(n for n in graph.nodes if n.kind == "Relu").input_elements == 24


def test_a_chain_of_unknown_operators_keeps_the_shape_of_the_first_input(tmp_path):
    names = ["x", *(f"q{i}" for i in range(20)), "y"]
    nodes = [
        helper.make_node("Relu" if i % 5 == 0 else "Quaternion", [a], [b],
                         domain="" if i % 5 == 0 else "their.own")
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]  # fmt: skip
    path = save(tmp_path, nodes, [tensor("x", "batch", 6)], [tensor("y", "batch", 6)])
    graph = read_onnx(path, batch_size=4, training=False)

    assert graph.unknown_ops == {"onnx.their.own.Quaternion": 16}
    assert {n.output_elements for n in graph.nodes} == {24}


def test_an_add_of_a_vector_of_weights_is_a_bias(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [tensor("x", "batch", 3, 6)],
        [tensor("y", "batch", 3, 6)],
        [("b", np.zeros(6, np.float32))],
    )

    assert {n.kind for n in read_onnx(path, batch_size=4).nodes} == {
        "BiasAdd", "BiasAddGrad", "Update",
    }  # fmt: skip


def test_files_of_external_weights_are_not_needed(tmp_path):
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        nn.Linear(512, 512), (torch.randn(2, 512),), path, dynamo=True, verbose=False,
        external_data=True, dynamic_shapes={"input": {0: "batch"}},
    )  # fmt: skip
    for file in tmp_path.iterdir():
        if file != path:
            file.unlink()

    assert read_onnx(path, batch_size=4).parameters == 512 * 512 + 512


def test_weights_are_dropped_at_once_except_numbers_that_shapes_need(tmp_path):
    table = onnx.numpy_helper.from_array(np.ones((1000, 50), np.float32))
    path = save(
        tmp_path,
        [
            helper.make_node("Constant", [], ["table"], value=table),
            helper.make_node("MatMul", ["x", "w"], ["wide"]),
            helper.make_node("MatMul", ["wide", "table"], ["narrow"]),
            helper.make_node("Reshape", ["narrow", "shape"], ["y"]),
        ],
        [tensor("x", "batch", 200)],
        [tensor("y", "batch", 5, 10)],
        [("w", np.ones((200, 1000), np.float32)), ("shape", np.array([-1, 5, 10]))],
    )
    assert path.stat().st_size > 10**6
    assert load_model(path).ByteSize() < 1000

    graph = read_onnx(path, batch_size=4, training=False)
    assert graph.parameters == 1000 * (200 + 50)
    assert flops(graph) == 2 * 4 * 1000 * (200 + 50)


def test_constant_operators_are_weights_and_unread_inputs_are_ignored(tmp_path):
    weights = {"w": np.ones((200, 1000), np.float32), "b": np.ones(1000, np.float32)}
    constants = [
        helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))
        for name, array in weights.items()
    ]
    layer = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    inputs, outputs = [tensor("x", "batch", 200)], [tensor("y", "batch", 1000)]
    for name in "one", "two":
        (tmp_path / name).mkdir()
    one = save(tmp_path / "one", [layer], inputs, outputs, list(weights.items()))
    unread = tensor("mask", "batch", 70)
    two = save(tmp_path / "two", [*constants, layer], [*inputs, unread], outputs, [])

    as_constants = read_onnx(two, batch_size=4, optimizer="adam")
    assert as_constants == read_onnx(one, batch_size=4, optimizer="adam")
    assert as_constants.input_elements == 200


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_attention_has_two_products_forward_and_five_backward(tmp_path, optimizer):
    path = tmp_path / "model.onnx"
    shape = ["batch", 4, 8, 16]
    names = [("x", "wq", "q"), ("x", "wk", "k"), ("x", "wv", "v")]
    graph = helper.make_graph(
        [
            *(helper.make_node("MatMul", [x, w], [out]) for x, w, out in names),
            helper.make_node("Attention", ["q", "k", "v"], ["y"]),
        ],
        "g", [tensor("x", *shape)], [tensor("y", *shape)],
        [onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), w) for _, w, _ in names],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), path)
    nodes = read_onnx(path, batch_size=2, optimizer=optimizer).nodes
    forward, backward = (
        sum(n.flops * n.count for n in nodes if (n.kind, n.phase) == ("Attention", phase))
        for phase in ("forward", "backward")
    )

    assert forward == 4 * 2 * 4 * (8 * 8 * 16)
    assert backward == 5 * forward // 2


def decomposed_attention(scale=True, mask=False, keys="k", after=()):
    """Return attention as exporters before opset 23 write it."""
    nodes = [helper.make_node("Transpose", [keys], ["kT"], perm=[0, 1, 3, 2])]
    query, scores = "q", "scores"
    if scale:
        nodes.append(helper.make_node("Mul", ["q", "scale"], ["scaled"]))
        query = "scaled"
    nodes.append(helper.make_node("MatMul", [query, "kT"], ["scores"]))
    if mask:
        nodes.append(helper.make_node("Add", ["scores", "mask"], ["masked"]))
        scores = "masked"
    nodes.append(helper.make_node("Softmax", [scores], ["weights"], axis=-1))
    return [*nodes, helper.make_node("MatMul", ["weights", "v"], ["y"]), *after]


QKV = [("q", "batch", 4, 8, 16), ("k", "batch", 4, 32, 16), ("v", "batch", 4, 32, 16)]
CONSTANTS = [("scale", np.float32(0.5)), ("mask", np.zeros((8, 32), np.float32))]


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_decomposed_attention_is_one_operator(tmp_path, scale, mask):
    path = save(
        tmp_path, decomposed_attention(scale, mask), [tensor(*i) for i in QKV],
        [tensor("y", "batch", 4, 8, 16)], CONSTANTS,
    )  # fmt: skip
    nodes = read_onnx(path, batch_size=2, training=False).nodes
    (attention,) = [n for n in nodes if n.kind == "Attention"]

    assert attention.flops == 4 * (2 * 4 * 8 * 32 * 16)
    assert {n.kind for n in nodes} == {"Attention", "Copy"}


def test_decomposed_attention_with_scores_as_output_stays_decomposed(tmp_path):
    path = save(
        tmp_path, decomposed_attention(), [tensor(*i) for i in QKV],
        [tensor("y", "batch", 4, 8, 16), tensor("weights", "batch", 4, 8, 32)], CONSTANTS,
    )  # fmt: skip
    kinds = [n.kind for n in read_onnx(path, batch_size=2, training=False).nodes]

    assert "Attention" not in kinds
    assert kinds.count("MatMul") == 2


def test_a_softmax_between_two_layers_is_not_attention(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("Softmax", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w2"], ["y"]),
        ],
        [tensor("x", "batch", 3, 6)],
        [tensor("y", "batch", 3, 5)],
        [("w1", np.zeros((6, 7), np.float32)), ("w2", np.zeros((7, 5), np.float32))],
    )
    kinds = {n.kind for n in read_onnx(path, batch_size=2, training=False).nodes}

    assert kinds == {"MatMul", "Softmax"}


def test_shape_computations_are_evaluated_and_are_not_operators(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["batch"]),
            helper.make_node("Gather", ["shape", "last"], ["width"]),
            helper.make_node("Mul", ["width", "two"], ["double"]),
            helper.make_node("Reshape", ["double", "flat"], ["double_1"]),
            helper.make_node("Unsqueeze", ["batch", "zero"], ["batch_1"]),
            helper.make_node("Concat", ["batch_1", "double_1"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
            helper.make_node("Relu", ["y"], ["z"]),
        ],
        [tensor("x", "batch", 2, 6)],
        [tensor("z", "batch", 12)],
        [
            ("first", np.array(0)), ("last", np.array(2)), ("two", np.array(2)),
            ("flat", np.array([-1])), ("zero", np.array([0])),
        ],
    )  # fmt: skip
    (relu,) = read_onnx(path, batch_size=5, training=False).nodes

    assert (relu.kind, relu.output_elements) == ("Relu", 5 * 12)


def test_a_slice_is_a_view_and_a_lookup_is_not(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("Gather", ["x", "one"], ["a"], axis=1),
            helper.make_node("Gather", ["a", "many"], ["y"], axis=1),
        ],
        [tensor("x", "batch", 3, 6)],
        [tensor("y", "batch", 2)],
        [("one", np.array(1)), ("many", np.array([1, 4]))],
    )
    (lookup,) = read_onnx(path, batch_size=5, training=False).nodes

    assert (lookup.kind, lookup.output_elements) == ("Embedding", 5 * 2)


def test_transposed_weights_are_still_weights(tmp_path):
    path = save(
        tmp_path,
        [
            helper.make_node("Concat", ["a", "b"], ["ab"], axis=0),
            helper.make_node("Transpose", ["ab"], ["w"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        [tensor("x", "batch", 6)],
        [tensor("y", "batch", 9)],
        [("a", np.zeros((4, 6), np.float32)), ("b", np.zeros((5, 6), np.float32))],
    )
    graph = read_onnx(path, batch_size=100)
    (product,) = [n for n in graph.nodes if n.phase == "forward"]

    assert (product.parameters, product.input_elements) == (9 * 6, 100 * 6)
    assert graph.parameters == 9 * 6
    assert graph.memory.activation_bytes == 0
    assert [n.op for n in graph.nodes if n.phase == "backward"] == ["onnx.MatMul.grad_weight"]


# Memory, by hand.


def layered(tmp_path):
    """Return a linear layer, tanh, addition and ReLU; each activation is 4 x 10."""
    return save(
        tmp_path,
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("Add", ["b", "a"], ["c"]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        [tensor("x", "batch", 6)],
        [tensor("y", "batch", 10)],
        [("w", np.zeros((6, 10), np.float32))],
    )


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_memory_of_training_by_rule(tmp_path, optimizer, states):
    graph = read_onnx(layered(tmp_path), batch_size=100, optimizer=optimizer)
    weight, activation = 4 * 6 * 10, 4 * 100 * 10

    assert graph.memory == MemoryEstimate(
        parameter_bytes=weight,
        gradient_bytes=weight,
        optimizer_state_bytes=states * weight,
        activation_bytes=2 * activation,  # what tanh and ReLU wrote; x is the batch
        workspace_bytes=activation,
        batch_bytes=4 * 100 * 6,
    )
    assert graph.peak_live_bytes == graph.memory.peak_bytes


def test_memory_of_inference_frees_a_value_after_its_last_reader(tmp_path):
    graph = read_onnx(layered(tmp_path), batch_size=100, training=False)
    activation = 4 * 100 * 10

    assert graph.memory == MemoryEstimate(
        4 * 6 * 10, 0, 0, 0, workspace_bytes=3 * activation, batch_bytes=4 * 100 * 6
    )


# Invalid input: errors name the problem, the place and the fix.


def refused(path, match, **options):
    with pytest.raises(GraphError, match=match) as caught:
        read_onnx(path, **{"batch_size": 4, **options})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_an_error(exported, tmp_path):
    path = tmp_path / "half.onnx"
    path.write_bytes(exported.read_bytes()[: exported.stat().st_size // 2])
    refused(path, "truncated, or not an ONNX file")


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file", b"\x89PNG\r\n\x1a\n" * 9])
def test_a_file_that_is_not_onnx_is_an_error(tmp_path, content):
    path = tmp_path / "cat.onnx"
    path.write_bytes(content)
    refused(path, "not an ONNX file|no ONNX graph in the file")


def test_a_missing_file_is_an_error(tmp_path):
    refused(tmp_path / "none.onnx", "cannot be read")


def test_an_input_without_a_shape_is_an_error(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    bare = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    refused(save(tmp_path, [node], bare[:1], bare[1:]), "input 'x' has no shape")


def test_the_error_of_a_symbolic_dimension_without_a_value_names_the_option(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", "batch", "sequence")],
        [tensor("y", "batch", "sequence")],
    )
    refused(path, "pass --dim sequence=N")
    assert read_onnx(path, batch_size=4, dims={"sequence": 5}, training=False)


def test_a_dimension_without_a_name_is_set_by_its_position(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", None, None, 3)],
        [tensor("y", None, None, 3)],
    )
    refused(path, r"dimension 1 \('1'\) has no value; pass --dim 1=N")
    (relu,) = read_onnx(path, batch_size=4, dims={"1": 5}, training=False).nodes

    assert relu.input_elements == 4 * 5 * 3


def test_a_batch_size_set_twice_must_agree(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", "batch", 3)],
        [tensor("y", "batch", 3)],
    )
    refused(path, "--dim batch=64 contradicts a batch size of 4; pass --batch-size 64",
            dims={"batch": 64})  # fmt: skip
    assert read_onnx(path, batch_size=4, dims={"batch": 4}, training=False)


@pytest.mark.parametrize("size", [0, -3])
def test_a_dimension_of_zero_is_rejected(tmp_path, size):
    path = save(
        tmp_path,
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", "batch", "sequence")],
        [tensor("y", "batch", "sequence")],
    )
    refused(path, f"sequence is {size}; use a dimension", dims={"sequence": size})
    refused(path, f"batch size is {size}; use a dimension", batch_size=size, dims={"sequence": 3})


def test_a_fixed_batch_other_than_the_requested_one_is_an_error(tmp_path):
    path = save(
        tmp_path,
        [helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 16, 3)], [tensor("y", 16, 3)],
    )  # fmt: skip
    refused(path, "fixed batch of 16.*--batch-size 16")


def test_an_unknown_optimizer_is_an_error(exported):
    with pytest.raises(GraphError, match="sgd, adam, adamw"):
        read_onnx(exported, batch_size=4, optimizer="lion")


def test_an_input_shared_by_all_samples_may_have_a_fixed_size(tmp_path):
    tokens = helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["batch", 8])
    positions = helper.make_tensor_value_info("positions", TensorProto.FLOAT, [1, 8])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    add = helper.make_node("Add", ["tokens", "positions"], ["out"])
    graph = helper.make_graph([add], "g", [tokens, positions], [out])
    path = tmp_path / "positions.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)

    (node,) = read_onnx(path, batch_size=4, training=False).nodes
    assert node.output_elements == 4 * 8
