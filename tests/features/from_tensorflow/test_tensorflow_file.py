"""Accepted TensorFlow files, and errors of other files."""

import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format

from presage.errors import GraphError
from presage.features.from_tensorflow.file import load_file
from presage.features.from_tensorflow.graph import read_tensorflow
from tests.features.from_tensorflow.tensorflow_examples import (
    const,
    flat,
    function,
    graph,
    node,
    placeholder,
    save,
    saved_model,
    weight,
)


def product(*shape):
    return flat(
        placeholder("x", *(shape or (None, 20))),
        weight("w", 20, 30),
        node("y", "MatMul", "x", "w/read"),
    )


def flops(path, **options):
    read = read_tensorflow(path, **{"batch_size": 4, "training": False, **options})
    return sum(n.flops * n.count for n in read.nodes)


def served(signature="serving_default"):
    """Return a SavedModel as TensorFlow 2 writes it: the graph calls a function."""
    body = function(
        "serve", ["a", "w"],
        node("read", "ReadVariableOp", "w", dtype="DT_FLOAT"),
        node("product", "MatMul", "a", "read:value:0"),
        returns={"out": "product:product:0"}, runs="read",
    )  # fmt: skip
    content = graph(
        placeholder("serve_x", None, 20),
        weight("w", 20, 30),
        weight("state", 9),
        node("call", "StatefulPartitionedCall", "serve_x", "w", f="serve"),
        functions=[body],
    )
    return saved_model(content, inputs="serve_x:0", outputs="call:0", signature=signature)


def test_a_binary_graph_is_read(tmp_path):
    assert flops(save(tmp_path, graph(product()))) == 2 * 4 * 20 * 30


def test_a_text_graph_with_unknown_fields_is_read(tmp_path):
    path = tmp_path / "model.pbtxt"
    versions = "versions { producer: 1882 min_consumer: 12 }\n"
    path.write_text(text_format.MessageToString(graph(product())) + versions)

    assert "DT_FLOAT" in path.read_text()
    assert flops(path) == 2 * 4 * 20 * 30


@pytest.mark.parametrize("name", ["saved_model.pb", "any.pb"])
def test_a_saved_model_is_read_by_its_file(tmp_path, name):
    assert flops(save(tmp_path, served(), name)) == 2 * 4 * 20 * 30


def test_a_saved_model_is_read_by_its_folder(tmp_path):
    save(tmp_path / "model", served(), "saved_model.pb")

    assert flops(tmp_path / "model") == 2 * 4 * 20 * 30


def test_only_operators_reached_by_the_signature_count(tmp_path):
    read = read_tensorflow(save(tmp_path, served(), "saved_model.pb"), batch_size=4)

    assert read.parameters == 600


def test_a_checkpoints_graph_names_the_trained_variables(tmp_path):
    (meta_graph,) = served().meta_graphs
    for collection, names in {"variables": "wv", "trainable_variables": "w"}.items():
        for name in names:
            row = b"\x0a" + bytes([len(name) + 2]) + f"{name}:0".encode()
            meta_graph.collection_def[collection].bytes_list.value.append(row)
    path = save(tmp_path, meta_graph, "model.ckpt.meta")

    assert load_file(path).trains == {"w": True, "v": False}
    assert flops(path) == 2 * 4 * 20 * 30


def test_weights_are_dropped_at_once_except_numbers_that_shapes_need(tmp_path):
    path = save(
        tmp_path,
        graph(
            placeholder("x", None, 500),
            const("w", np.ones((500, 300), np.float32)),
            node("wide", "MatMul", "x", "w"),
            const("sizes", [-1, 30, 10]),
            node("y", "Reshape", "wide", "sizes"),
            node("z", "Relu", "y"),
        ),
    )

    assert path.stat().st_size > 500_000
    assert load_file(path).graph.ByteSize() < 1000
    assert flops(path) == 2 * 4 * 500 * 300 + 4 * 300


def test_tensorflow_is_not_needed(tmp_path):
    path = save(tmp_path, graph(product()))
    code = (
        "import sys; from pathlib import Path; "
        "from presage.features.from_tensorflow.graph import read_tensorflow; "
        f"read_tensorflow(Path({str(path)!r}), batch_size=4); "
        "print(sorted({'tensorflow', 'onnx', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


# Dimensions that the file leaves open.


def test_the_batch_size_replaces_the_first_dimension(tmp_path):
    path = save(tmp_path, graph(product()))

    assert flops(path, batch_size=12) == 3 * flops(path, batch_size=4)


def test_another_unknown_dimension_needs_a_value(tmp_path):
    path = save(tmp_path, graph(placeholder("x", None, None, 3), node("y", "Relu", "x")))
    refused(path, r"placeholder 'x', dimension 1, has no value; pass --dim x:1=N")

    assert flops(path, dims={"x:1": 5}) == flops(path, dims={"x": 5}) == 4 * 5 * 3


def test_the_first_dimension_may_be_another_than_the_batch(tmp_path):
    path = save(
        tmp_path,
        graph(
            placeholder("x", None, 3),
            placeholder("nodes", None, 3),
            node("y", "Relu", "x"),
            node("z", "Relu", "nodes"),
        ),
    )

    assert flops(path, dims={"nodes:0": 10}) == (4 + 10) * 3


def test_a_fixed_batch_other_than_the_requested_one_is_an_error(tmp_path):
    path = save(tmp_path, graph(product(16, 20)))
    refused(path, "placeholder 'x' has a fixed batch of 16, not 4; pass --batch-size 16")

    assert flops(path, batch_size=16)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"dims": {"x:1": -3}}])
def test_a_dimension_of_zero_is_rejected(tmp_path, options):
    refused(save(tmp_path, graph(product())), "use a dimension of at least 1", **options)


# Invalid input: errors name the problem, the place and the fix.


def refused(path, match, **options):
    with pytest.raises(GraphError, match=match) as caught:
        read_tensorflow(path, **{"batch_size": 4, **options})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty; export"),
        (b"hello, I am a text file", "not a TensorFlow graph"),
        (b"\x89PNG\r\n\x1a\n" * 9, "not a TensorFlow graph"),
        (b"\x18\x01", "no TensorFlow graph in the file"),
    ],
)
def test_a_file_that_is_not_a_graph_is_an_error(tmp_path, content, match):
    path = tmp_path / "cat.pb"
    path.write_bytes(content)
    refused(path, match)


@pytest.mark.parametrize("name", ["saved_model.pb", "model.meta", "model.pbtxt"])
def test_another_kind_of_file_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe node nonsense {")
    refused(path, "truncated, or not a TensorFlow graph")


def test_a_truncated_file_is_an_error(tmp_path):
    path = save(tmp_path, graph(product()))
    path.write_bytes(path.read_bytes()[:-7])
    refused(path, "truncated, or not a TensorFlow graph")


def test_a_missing_file_is_an_error(tmp_path):
    refused(tmp_path / "none.pb", "cannot be read")


def test_a_folder_without_a_saved_model_is_an_error(tmp_path):
    refused(tmp_path, "a folder without saved_model.pb")


def test_a_saved_model_without_a_serving_signature_is_an_error(tmp_path):
    path = save(tmp_path, served(signature=""), "saved_model.pb")
    refused(path, r"no signature 'serving_default' \(its signatures: none\); save it with")


def test_a_single_signature_of_another_name_is_used(tmp_path):
    assert flops(save(tmp_path, served("embed"), "saved_model.pb"))


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ([const("a", [1]), node("y", "Relu", "a")], "no placeholder among the .* nodes"),
        (
            [placeholder("x", None, 3), node("y", "AddV2", "x", "gone")],
            r"node 'y' \(AddV2\) reads 'gone:0', which is not in the file",
        ),
        (
            [node("x", "Placeholder", dtype="DT_FLOAT"), node("y", "Relu", "x")],
            "placeholder 'x' has no shape; export",
        ),
        (
            [placeholder("x", None, 20), weight("w", 21, 3), node("y", "MatMul", "x", "w/read"),
             node("z", "AddV2", "y", "x")],
            r"node 'z' \(AddV2\): inputs of shape \[4, 3\], \[4, 20\] do not fit",
        ),
        (
            [placeholder("x", None, 20), placeholder("n", 2, dtype="DT_INT32"),
             node("y", "Reshape", "x", "n"), node("z", "Relu", "y")],
            r"node 'y' \(Reshape\) depends on something outside the file; export",
        ),
        (
            [placeholder("x", None, 20), node("w", "VarHandleOp", shape=None, dtype="DT_FLOAT"),
             node("read", "ReadVariableOp", "w"), node("y", "MatMul", "x", "read")],
            "variable 'w' has no shape; export",
        ),
        (
            [placeholder("x", None, 20), node("y", "PartitionedCall", "x", f="gone")],
            r"node 'y' \(PartitionedCall\) calls 'gone', which",
        ),
        (
            [placeholder("x", None, 20), node("m", "Merge", "x", "n"),
             node("n", "NextIteration", "m")],
            "depends on itself: a loop of TensorFlow 1's control flow; unroll it",
        ),
        (
            [placeholder("x", None, 5, 5, 3), weight("k", 7, 7, 3, 2),
             node("y", "Conv2D", "x", "k/read", padding="VALID", strides=[1, 1, 1, 1])],
            "do not fit .*negative dimension",
        ),
        (
            [placeholder("x", None, 5, 5, 3), weight("k", 3, 3, 3, 2),
             node("y", "Conv2D", "x", "k/read", padding="VALID", strides=[1, 0, 0, 1])],
            "do not fit",
        ),
    ],
)  # fmt: skip
def test_an_unreadable_graph_is_an_error(tmp_path, nodes, match):
    refused(save(tmp_path, graph(*nodes)), match)


def test_a_recursive_function_is_an_error(tmp_path):
    body = function(
        "body", ["a"],
        node("inner", "PartitionedCall", "a", f="body"),
        returns={"out": "inner:output:0"},
    )  # fmt: skip
    nodes = [placeholder("x", None, 20), node("y", "PartitionedCall", "x", f="body")]
    refused(save(tmp_path, graph(*nodes, functions=[body])), "calls deep: a function calls itself")


def test_a_constant_whose_size_differs_from_its_content_is_an_error(tmp_path):
    bad = const("sizes", [1, 2, 3])
    bad.attr["value"].tensor.tensor_content = b"\x01\x00"
    nodes = [placeholder("x", None, 20), bad, node("y", "Reshape", "x", "sizes")]
    refused(save(tmp_path, graph(*nodes)), "constant 'sizes': its numbers do not match its shape")


@pytest.mark.parametrize("cut", range(20, 400, 29))
def test_any_truncated_file_is_a_graph_or_an_error_of_one_line(tmp_path, cut):
    content = graph(product()).SerializeToString()
    path = tmp_path / "cut.pb"
    path.write_bytes(content[:cut])
    try:
        flops(path)
    except GraphError as error:
        assert "\n" not in str(error)
