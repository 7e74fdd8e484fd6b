"""Arithmetic on shapes, done once: an exported file computes them in the graph, torch does not.

Without it a shape can stay unknown, where shape inference does not follow a sum or a reshape of
dimensions, and every such operator would be counted as if it worked on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from presage.features.from_onnx.cost import Value, attribute
from presage.system.arrays import AnyArray

KEPT_ELEMENTS = 64  # more numbers than these are data, not a shape
# Each writes about as much as it reads, or as much as it is told to: see below.
_ARITHMETIC = frozenset(
    "Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Flatten Floor Gather Greater "
    "GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pow Range Reciprocal "
    "ReduceMax ReduceMin ReduceProd ReduceSum Reshape Slice Sqrt Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)
# Of these the numbers say how much is written: only shape inference knows whether it is little.
_AS_MUCH_AS_TOLD = frozenset({"ConstantOfShape", "Expand", "Range"})
_LAYOUTS = frozenset(
    "Concat Flatten Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split()
)
# Attributes of a Constant in which a number or a few stand without a tensor around them.
_BARE = {
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def fold_shapes(model: Any, values: Mapping[str, Value]) -> bool:
    """Replace what follows from known shapes by constants; whether there was anything to."""
    known = _given(model.graph)
    folded = False
    for position, node in enumerate(model.graph.node):
        result = _result(node, values, known)
        if result is None:
            continue
        (name,) = node.output
        known[name] = result
        constant = onnx.numpy_helper.from_array(result, name)
        model.graph.node[position].CopyFrom(
            onnx.helper.make_node("Constant", [], [name], value=constant)
        )
        folded = True
    return folded


def drop_layouts(model: Any) -> set[str]:
    """Take out what only lays weights out anew (gates in another order): done once, not a step.

    Returns
    -------
    set of str
        What the operators taken out wrote: names of weights in all but place.
    """
    laid_out = {tensor.name for tensor in model.graph.initializer}
    laid_out |= {n for node in model.graph.node if node.op_type == "Constant" for n in node.output}
    kept, made = [], set[str]()
    for node in model.graph.node:
        if node.op_type in _LAYOUTS and all(n in laid_out for n in node.input if n):
            made.update(node.output)
            laid_out.update(node.output)
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return made


def _given(graph: Any) -> dict[str, AnyArray]:
    """Small constants of the file: whole numbers, and single ones of any type (a scale).

    Other floats may be weights, and what is made of weights is data.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and (tensor := _constant(node)) is not None:
            tensors[node.output[0]] = tensor
    return {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in tensors.items()
        if _is_small(tensor) and (not tensor.dims or not Value((), tensor.data_type).is_float)
    }


def _constant(node: Any) -> Any:
    """A Constant's tensor, also of one that is written as bare numbers; None of any other."""
    for name, dtype in _BARE.items():
        if (numbers := attribute(node, name, None)) is not None:
            return onnx.numpy_helper.from_array(np.array(numbers, dtype))
    return attribute(node, "value", None)


def _is_small(tensor: Any) -> bool:
    elements = Value(tuple(tensor.dims), tensor.data_type).elements
    has_content = any(
        tensor.HasField(field) if field == "raw_data" else len(getattr(tensor, field))
        for field in ("raw_data", "int64_data", "int32_data", "float_data", "double_data")
    )
    # What lies in another file is not opened: its name may be any.
    is_here = tensor.data_location != onnx.TensorProto.EXTERNAL
    return elements <= KEPT_ELEMENTS and is_here and (has_content or not elements)


def _result(
    node: Any, values: Mapping[str, Value], known: Mapping[str, AnyArray]
) -> AnyArray | None:
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in values:
        return _of_shape(node, values[node.input[0]])
    names = [name for name in node.input if name]
    if node.op_type not in _ARITHMETIC or not names or any(n not in known for n in names):
        return None
    out = values.get(node.output[0])
    if node.op_type in _AS_MUCH_AS_TOLD if out is None else out.elements > KEPT_ELEMENTS:
        return None
    return _computed(node, {name: known[name] for name in names})


def _of_shape(node: Any, value: Value) -> AnyArray:
    if node.op_type == "Size":
        return np.array(value.elements, np.int64)
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    return np.array(value.shape[start:end], np.int64)


def _computed(node: Any, inputs: dict[str, AnyArray]) -> AnyArray | None:
    """By ONNX's own reference; None where it cannot, and the operator is left as it is."""
    graph = onnx.helper.make_graph(
        [node],
        "shape",
        [onnx.helper.make_tensor_value_info(n, _type(a), a.shape) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=node.output[0])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    try:
        (result,) = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # whatever is wrong with the node, shape inference has better words
        return None
    array = np.asarray(result)
    return array if array.size <= KEPT_ELEMENTS else None


def _type(array: AnyArray) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
