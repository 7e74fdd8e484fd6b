"""Constant folding of shape arithmetic: an exported file computes shapes in the graph.

Without folding, shapes stay unknown where shape inference does not follow a sum or a reshape of
dimensions, and the operators of the arithmetic would count as work on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from presage.features.from_onnx.cost import Value, attribute
from presage.system.arrays import AnyArray

MAX_FOLDED_ELEMENTS = 64  # larger tensors are data, not a shape
# Operators whose output is about as large as their input, or as large as an input says: see below.
_ARITHMETIC = frozenset(
    "Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Flatten Floor Gather Greater "
    "GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pow Range Reciprocal "
    "ReduceMax ReduceMin ReduceProd ReduceSum Reshape Slice Sqrt Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)
# The output size of these depends on an input's values; only shape inference knows if it is small.
_SIZED_BY_INPUT = frozenset({"ConstantOfShape", "Expand", "Range"})
_LAYOUTS = frozenset(
    "Concat Flatten Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split()
)
# Attributes of a Constant that hold numbers without a tensor.
_BARE = {
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def fold_shapes(model: Any, values: Mapping[str, Value]) -> bool:
    """Replace results of known shapes by constants; return whether anything was replaced."""
    known = _small_constants(model.graph)
    folded = False
    for position, node in enumerate(model.graph.node):
        result = _fold_node(node, values, known)
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
    """Remove operators that only rearrange weights (gates in another order): these run only once.

    Returns
    -------
    set of str
        Outputs of the removed operators: names of rearranged weights.
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


def _small_constants(graph: Any) -> dict[str, AnyArray]:
    """Return small constants of the file: integers, and single numbers of any type (a scale).

    Other floats may be weights, and values computed from weights are data.
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
    """Return a Constant's tensor, also if it is written as plain numbers; None for other nodes."""
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
    # Do not open tensors in other files: the path is arbitrary.
    is_here = tensor.data_location != onnx.TensorProto.EXTERNAL
    return elements <= MAX_FOLDED_ELEMENTS and is_here and (has_content or not elements)


def _fold_node(
    node: Any, values: Mapping[str, Value], known: Mapping[str, AnyArray]
) -> AnyArray | None:
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in values:
        return _evaluate_shape(node, values[node.input[0]])
    names = [name for name in node.input if name]
    if node.op_type not in _ARITHMETIC or not names or any(n not in known for n in names):
        return None
    out = values.get(node.output[0])
    if node.op_type in _SIZED_BY_INPUT if out is None else out.elements > MAX_FOLDED_ELEMENTS:
        return None
    return _evaluate(node, {name: known[name] for name in names})


def _evaluate_shape(node: Any, value: Value) -> AnyArray:
    if node.op_type == "Size":
        return np.array(value.elements, np.int64)
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    return np.array(value.shape[start:end], np.int64)


def _evaluate(node: Any, inputs: dict[str, AnyArray]) -> AnyArray | None:
    """Evaluate a node with ONNX's reference implementation; None if that fails."""
    graph = onnx.helper.make_graph(
        [node],
        "shape",
        [onnx.helper.make_tensor_value_info(n, _type(a), a.shape) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=node.output[0])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    try:
        (result,) = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # shape inference reports a better error for the node
        return None
    array = np.asarray(result)
    return array if array.size <= MAX_FOLDED_ELEMENTS else None


def _type(array: AnyArray) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
