"""Model files made to exhaust resources, or to read other files."""

import signal
import time
from contextlib import suppress

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from presage.errors import GraphError
from presage.features.from_onnx import native, shapes
from presage.features.from_onnx.graph import read_onnx
from presage.features.from_tensorflow.graph import read_tensorflow
from presage.features.graph import graph_file
from tests.features.from_tensorflow.tensorflow_examples import (
    const,
    function,
    graph,
    node,
    placeholder,
    save,
)
from tests.fuzzing.guard import NATIVE_PROCESS
from tests.fuzzing.test_corpus import CORPUS


def save_onnx(folder, nodes, initializers=(), functions=()):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(made, opset_imports=opsets, functions=functions, ir_version=10)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def test_a_file_that_crashes_onnx_does_not_affect_the_next(tmp_path):
    with pytest.raises(GraphError, match="ONNX's code crashed"):
        read_onnx(CORPUS / "onnx" / "native_crash.onnx", batch_size=2)

    assert read_onnx(save_onnx(tmp_path, [helper.make_node("Relu", ["x"], ["y"])]), batch_size=2)


def test_an_abandoned_response_is_not_returned_for_the_next_file():
    def interrupt(*_):
        raise KeyboardInterrupt

    def inferred(name):
        relu = helper.make_node("Relu", ["x"], ["y"])
        return native.infer_shapes(helper.make_model(helper.make_graph([relu], name, [], [])), name)

    assert inferred("before").graph.name == "before"
    (child,) = [
        one for one in psutil.Process().children() if NATIVE_PROCESS in " ".join(one.cmdline())
    ]
    before = signal.signal(signal.SIGALRM, interrupt)
    child.send_signal(signal.SIGSTOP)  # its answer comes after the interrupt
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            inferred("interrupted")
    finally:
        signal.signal(signal.SIGALRM, before)
        with suppress(psutil.NoSuchProcess):  # it is ended with its response
            child.send_signal(signal.SIGCONT)

    assert inferred("next").graph.name == "next"


def test_external_data_is_not_read(tmp_path):
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [8])
    shape.ClearField("int64_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="/etc/passwd")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", "r", "y")]

    with pytest.raises(GraphError, match="tensor 'r' of Relu '' has no shape"):
        read_onnx(save_onnx(tmp_path, nodes, [shape]), batch_size=2)


def test_paths_in_a_file_are_dropped_when_it_is_read(tmp_path):
    value = helper.make_tensor("value", TensorProto.INT64, [1], [8])
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="/etc/passwd")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["c"], value=value),
        helper.make_node("Reshape", ["x", "c"], ["y"]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1])

    model = shapes.load_model(save_onnx(tmp_path, nodes, [shape]))

    assert b"passwd" not in model.SerializeToString()


def test_shape_inference_stops_after_a_bounded_number_of_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "MAX_NODE_VISITS", 100)
    nodes, last = [], "x"
    for i in range(20):
        nodes += [
            helper.make_node("Shape", [last], [f"s{i}"]),
            helper.make_node("Reshape", [last, f"s{i}"], [f"r{i}"]),
            helper.make_node("unknown", [f"r{i}"], [f"u{i}"], domain="own"),
        ]
        last = f"u{i}"

    with pytest.raises(GraphError, match="60 nodes are unknown after 2 rounds"):
        read_onnx(save_onnx(tmp_path, nodes), batch_size=2)


def test_exponentially_nested_functions_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_file, "MAX_NODES", 1000)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inner = [[helper.make_node("Relu", ["a"], ["b"])]]
    inner += [
        [
            helper.make_node(f"f{i}", ["a"], ["t"], domain="own"),
            helper.make_node(f"f{i}", ["t"], ["b"], domain="own"),
        ]
        for i in range(11)
    ]
    functions = [
        helper.make_function("own", f"f{i}", ["a"], ["b"], nodes, opsets)
        for i, nodes in enumerate(inner)
    ]
    path = save_onnx(
        tmp_path, [helper.make_node("f11", ["x"], ["y"], domain="own")], functions=functions
    )
    with pytest.raises(GraphError, match="expands to more than 1000 operators"):
        read_onnx(path, batch_size=2)

    calls = [
        function(
            f"f{i}",
            ["v"],
            node("a", "PartitionedCall", "v", f=f"f{i - 1}"),
            node("b", "PartitionedCall", "a:output:0", f=f"f{i - 1}"),
            returns={"o": "b:output:0"},
        )
        for i in range(1, 12)
    ]
    first = function("f0", ["v"], node("r", "Relu", "v"), returns={"o": "r:activations:0"})
    call = node("y", "PartitionedCall", "x", f="f11")
    made = graph(placeholder("x", None, 4), call, functions=[first, *calls])
    with pytest.raises(GraphError, match="expands to more than 1000 operators"):
        read_tensorflow(save(tmp_path, made), batch_size=2)


def test_an_understated_size_does_not_cause_a_large_computation(tmp_path):
    # The file declares one number where Fill would write 10**12.
    made = graph(
        placeholder("x", None, 4),
        node("many", "Fill", "count", "one", _output_shapes=[[]], T="DT_INT32"),
        const("count", np.array([10**6, 10**6], np.int32)),
        const("one", 1),
        node("y", "AddV2", "x", "many"),
    )

    assert read_tensorflow(save(tmp_path, made), batch_size=2).nodes


def test_a_node_of_many_outputs_costs_linear_time(tmp_path):
    dropout = helper.make_node("Dropout", ["x"], ["y", *(f"mask{i}" for i in range(50_000))])
    path = save_onnx(tmp_path, [dropout])

    begin_s = time.process_time()
    read_onnx(path, batch_size=2)
    assert time.process_time() - begin_s < 5  # not by the square of their number


def test_an_excessive_output_index_allocates_no_memory(tmp_path):
    made = graph(placeholder("x", None, 4), node("y", "Relu", "x:999999999"))

    with pytest.raises(GraphError, match=r"output 999999999 of 'x'; at most 4096 are"):
        read_tensorflow(save(tmp_path, made), batch_size=2)
