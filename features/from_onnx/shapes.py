"""Parsing of an ONNX file, with every dimension bound and every shape inferred."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from presage.errors import GraphError
from presage.features.from_onnx import native
from presage.features.from_onnx.cost import Value
from presage.features.from_onnx.folding import fold_shapes
from presage.features.graph.graph_file import MAX_NODE_VISITS, check_nodes, read_file
from presage.features.graph.op_kinds import ONNX_FREE, onnx_kind

# Values of tensors up to this size are kept: shape inference reads the few numbers that Reshape,
# Slice, Pad and similar operators need.
MAX_KEPT_BYTES = 1024


def load_model(path: Path) -> Any:
    """Parse a file, without the values of its weights.

    Raises
    ------
    GraphError
        The file is missing, truncated or not ONNX.
    """
    content = read_file(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise GraphError(
            f"{path}: truncated, or not an ONNX file ({len(content)} bytes do not parse); "
            "export the model again"
        ) from error
    if not model.ir_version or not model.graph.node:
        raise GraphError(
            f"{path}: no ONNX graph in the file (ir_version {model.ir_version}, "
            f"{len(model.graph.node)} nodes); use a file written by torch.onnx.export"
        )
    _drop_weights(model.graph)
    flat = native.inline_functions(model, path) if model.functions else model
    check_nodes(len(flat.graph.node), str(path))
    _drop_weights(flat.graph)
    _convert_constants(flat.graph)
    return flat


def _convert_constants(graph: Any) -> None:
    """Convert Constant operators, which some exporters use for weights, to initializers."""
    kept = []
    for node in graph.node:
        is_constant = node.op_type == "Constant"
        tensors = [a.t for a in node.attribute if is_constant and a.name == "value"]
        weights = [t for t in tensors if Value(tuple(t.dims), t.data_type).is_weight]
        for weight in weights:
            weight.name = node.output[0]
            graph.initializer.append(weight)
        if not weights:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _drop_weights(graph: Any) -> None:
    """Drop the values of all but small tensors: inference copies the model several times."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        tensor.ClearField("external_data")  # an arbitrary path, which must not be opened
        if tensor.ByteSize() > MAX_KEPT_BYTES:
            for field in (
                "raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data",
            ):  # fmt: skip
                tensor.ClearField(field)
    for attribute in attributes:
        if attribute.HasField("g"):
            _drop_weights(attribute.g)


def bind_dimensions(model: Any, batch_size: int, dims: Mapping[str, int], path: Path) -> None:
    """Replace symbolic dimensions of the inputs; drop intermediate shapes that used them.

    Raises
    ------
    GraphError
        A dimension has no value, a value below 1, or one that contradicts the batch size.
    """
    for name, size in {"batch size": batch_size, **dims}.items():
        if size < 1:
            raise GraphError(f"{path}: {name} is {size}; use a dimension of at least 1")
    weights = {i.name for i in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    carried = any(_carries_batch(value.type.tensor_type, batch_size) for value in inputs)
    for value in inputs:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise GraphError(
                f"{path}: input {value.name!r} has no shape; export the model with example inputs"
            )
        for axis, dim in enumerate(tensor.shape.dim):
            where = f"{path}: input {value.name!r}"
            if not (dim.HasField("dim_value") and dim.dim_value > 0):
                dim.dim_value = _dimension_value(dim.dim_param, axis, batch_size, dims, where)
            elif (
                axis == 0 and not carried
                and len(tensor.shape.dim) > 1 and dim.dim_value != batch_size
            ):  # fmt: skip
                raise GraphError(
                    f"{where} has a fixed batch of {dim.dim_value}, "
                    f"not {batch_size}; pass --batch-size {dim.dim_value}, or export it with "
                    "a dynamic first dimension"
                )
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _carries_batch(tensor: Any, batch_size: int) -> bool:
    """Return whether an input's first dimension is the batch; other inputs may be fixed."""
    if not tensor.HasField("shape") or not tensor.shape.dim:
        return False
    first = tensor.shape.dim[0]
    return not (first.HasField("dim_value") and first.dim_value > 0) or (
        first.dim_value == batch_size
    )


def _dimension_value(
    name: str, axis: int, batch_size: int, dims: Mapping[str, int], where: str
) -> int:
    """Return the value of a symbolic dimension, by its name or, without one, by its position."""
    name = name or str(axis)
    size = dims.get(name, batch_size if axis == 0 else None)
    if size is None:
        raise GraphError(f"{where}, dimension {axis} ({name!r}) has no value; pass --dim {name}=N")
    if axis == 0 and size != batch_size:
        raise GraphError(
            f"{where}, dimension 0 ({name!r}) is the batch: --dim {name}={size} contradicts "
            f"a batch size of {batch_size}; pass --batch-size {size}"
        )
    return size


def infer_shapes(model: Any, path: Path) -> dict[str, Value]:
    """Infer the shapes of all tensors, intermediate ones included.

    An unknown operator is assumed to keep its first input's shape. Operators that only compute
    shapes become constants in ``model``.

    Raises
    ------
    GraphError
        Operators and shapes are inconsistent.
    """
    nodes = len(model.graph.node)
    for rounds in range(1 + 2 * nodes):
        if rounds * nodes > MAX_NODE_VISITS:
            raise GraphError(
                f"{path}: shapes of its {nodes} nodes are unknown after {rounds} rounds of shape "
                "inference; run onnx.shape_inference.infer_shapes on the file, or export it with "
                "static shapes"
            )
        values = _typed_values(native.infer_shapes(model, path))
        for initializer in model.graph.initializer:
            shape = tuple(initializer.dims)
            values[initializer.name] = Value(shape, initializer.data_type)
        if fold_shapes(model, values):
            continue
        guesses = _guess_unknown_outputs(model, values)
        if not guesses:
            return values
        known = [v for v in model.graph.value_info if v.name not in guesses]
        del model.graph.value_info[:]
        model.graph.value_info.extend(known)
        model.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(name, value.elem_type, value.shape)
            for name, value in guesses.items()
        )
    return values


def _typed_values(model: Any) -> dict[str, Value]:
    values = {}
    graph = model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            continue
        dims = tensor.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            values[value.name] = Value(tuple(d.dim_value for d in dims), tensor.elem_type)
    return values


def _guess_unknown_outputs(model: Any, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return guessed output shapes of operators unknown to shape inference, from their inputs."""
    guesses: dict[str, Value] = {}
    for node in model.graph.node:
        inferable = node.domain in ("", "ai.onnx") and onnx_kind(node.op_type) != "Other"
        if inferable or node.op_type in ONNX_FREE or not node.input:
            continue
        first = values.get(node.input[0]) or guesses.get(node.input[0])
        if first is not None:
            guesses |= {name: first for name in node.output if name and name not in values}
    return guesses
