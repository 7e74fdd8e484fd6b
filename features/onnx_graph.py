"""The operator graph of an ONNX file: the forward pass as written, the rest by rule.

Weights are not read (external data may be absent). An ONNX file holds no backward pass; for a
training job :mod:`presage.features.backward` adds the one that autograd would run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from presage.features.backward import training_step
from presage.features.errors import GraphError
from presage.features.graph import OpGraph, OpNode, merge_equal
from presage.features.op_kinds import ONNX_FREE, onnx_kind

ELEMENT_FLOPS = {"Normalization": 8, "Softmax": 5, "Copy": 0, "Embedding": 0, "Concat": 0}
_BYTES = {
    onnx.TensorProto.FLOAT: 4, onnx.TensorProto.DOUBLE: 8, onnx.TensorProto.FLOAT16: 2,
    onnx.TensorProto.BFLOAT16: 2, onnx.TensorProto.INT64: 8, onnx.TensorProto.INT32: 4,
    onnx.TensorProto.BOOL: 1, onnx.TensorProto.INT8: 1, onnx.TensorProto.UINT8: 1,
}  # fmt: skip
_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
}


def read_onnx(
    path: Path,
    *,
    batch_size: int,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "sgd",
    training: bool = True,
) -> OpGraph:
    """Operator graph of the model at ``path``.

    Parameters
    ----------
    batch_size : int
        Put in place of the first dimension of every input, where that is symbolic.
    dims : mapping of str to int, optional
        Values of the other symbolic dimensions, by their names in the file.
    optimizer : {"sgd", "adam", "adamw"}
        What updates the weights, for a training job.
    training : bool
        Whether to add the backward pass and the optimizer.

    Raises
    ------
    GraphError
        The file is missing, truncated, not ONNX, or leaves a shape unknown.
    """
    model = _load(path)
    _bind_dimensions(model, batch_size, dims or {}, path)
    values = _infer_shapes(model, path)
    weights = {i.name: _Value(tuple(i.dims), i.data_type) for i in model.graph.initializer}
    values |= weights
    forward = list(_forward(model, values, set(weights), path))
    parameters = sum(w.elements for name, w in weights.items() if _is_trainable(model, name, w))
    inputs = [i for i in model.graph.input if i.name not in weights]
    elements = sum(values[i.name].elements for i in inputs) // max(1, batch_size)
    weight_bytes = sum(w.nbytes for w in weights.values())
    activation_bytes = sum(
        values[name].nbytes
        for node in model.graph.node
        if node.op_type not in ONNX_FREE
        for name in node.output
        if name in values
    )
    if training:
        trainable = [w.elements for n, w in weights.items() if _is_trainable(model, n, w)]
        return training_step(
            forward,
            parameter_sizes=trainable,
            weight_bytes=weight_bytes,
            activation_bytes=activation_bytes,
            input_elements=max(1, elements),
            optimizer=optimizer,
        )
    return OpGraph(
        nodes=merge_equal(node for node, _ in forward),
        parameters=parameters,
        peak_live_bytes=weight_bytes + activation_bytes,
        input_elements=max(1, elements),
    )


class _Value:
    """Shape and element type of a tensor in the file."""

    def __init__(self, shape: tuple[int, ...], elem_type: int) -> None:
        self.shape = shape
        self.elem_type = elem_type
        self.elements = math.prod(shape)
        self.nbytes = self.elements * _BYTES.get(elem_type, 4)


def _load(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GraphError(f"{path}: cannot be read ({error.strerror}); check the path") from error
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
            f"{path}: parses, but holds no ONNX graph (ir_version {model.ir_version}, "
            f"{len(model.graph.node)} nodes); give a file written by torch.onnx.export or the like"
        )
    return model


def _bind_dimensions(model: Any, batch_size: int, dims: Mapping[str, int], path: Path) -> None:
    """Replace symbolic dimensions of the inputs; forget intermediate shapes that relied on them."""
    weights = {i.name for i in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise GraphError(
                f"{path}: input {value.name!r} has no shape; export the model with example inputs"
            )
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                if axis == 0 and len(tensor.shape.dim) > 1 and dim.dim_value != batch_size:
                    raise GraphError(
                        f"{path}: input {value.name!r} has a fixed batch of {dim.dim_value}, "
                        f"not {batch_size}; pass --batch-size {dim.dim_value}, or export it with "
                        "a dynamic first dimension"
                    )
                continue
            name = dim.dim_param
            size = dims.get(name, batch_size if axis == 0 else None)
            if size is None:
                raise GraphError(
                    f"{path}: input {value.name!r}, dimension {axis} ({name or 'unnamed'!r}) has "
                    f"no value; pass --dim {name or axis}=N"
                )
            dim.dim_value = size
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _infer_shapes(model: Any, path: Path) -> dict[str, _Value]:
    """Shapes of all tensors. An unknown operator is taken to keep its first input's shape."""
    for _ in range(1 + len(model.graph.node)):
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise GraphError(
                f"{path}: shape inference failed: {line}; run onnx.checker on the file"
            ) from error
        values = _known_values(inferred)
        for initializer in model.graph.initializer:
            shape = tuple(initializer.dims)
            values[initializer.name] = _Value(shape, initializer.data_type)
        guess = _first_unknown_output(model, values)
        if guess is None:
            return values
        output, shape, elem_type = guess
        known = [v for v in model.graph.value_info if v.name != output]
        del model.graph.value_info[:]
        model.graph.value_info.extend(known)
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(output, elem_type, shape))
    return values


def _known_values(model: Any) -> dict[str, _Value]:
    values = {}
    graph = model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            continue
        dims = tensor.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            values[value.name] = _Value(tuple(d.dim_value for d in dims), tensor.elem_type)
    return values


def _first_unknown_output(
    model: Any, values: Mapping[str, _Value]
) -> tuple[str, tuple[int, ...], int] | None:
    for node in model.graph.node:
        if onnx_kind(node.op_type, node.domain) != "Other" or node.op_type in ONNX_FREE:
            continue
        for output in node.output:
            first = values.get(node.input[0]) if node.input else None
            if output and output not in values and first is not None:
                return output, first.shape, first.elem_type
    return None


def _forward(
    model: Any, values: Mapping[str, _Value], weights: set[str], path: Path
) -> Iterator[tuple[OpNode, bool]]:
    """Each operator, and whether the data it reads needs a gradient."""
    needs_gradient = {name for name in weights if values[name].elem_type in _FLOATS}
    learnt = set(needs_gradient)
    for node in model.graph.node:
        data_needs_gradient = any(n in needs_gradient and n not in learnt for n in node.input)
        if any(n in needs_gradient for n in node.input):
            needs_gradient.update(node.output)
        if node.op_type in ONNX_FREE:
            continue
        for name in (*node.input, *node.output):
            if name and name not in values and not _is_optional(node, name):
                raise GraphError(
                    f"{path}: tensor {name!r} of {node.op_type} {node.name!r} has no shape; "
                    "run onnx.shape_inference.infer_shapes on the file, or export it with "
                    "static shapes"
                )
        read = [values[name] for name in node.input if name in values]
        written = [values[name] for name in node.output if name in values]
        own = [values[n] for n in node.input if n in weights and values[n].elem_type in _FLOATS]
        kind = onnx_kind(node.op_type, node.domain)
        bias = _bias_of(node, values, weights)
        data = [values[n] for n in node.input if n in values and n not in weights]
        own_elements = sum(v.elements for v in own) - (bias.elements if bias else 0)
        moved = sum(v.nbytes for v in (*read, *written))
        if kind == "Embedding" and read:
            moved = 2 * sum(v.nbytes for v in written) + sum(v.nbytes for v in data)
        operator = OpNode(
            op=f"onnx.{node.domain + '.' if node.domain else ''}{node.op_type}",
            kind=_kind_of_addition(node, kind, values, weights),
            phase="forward",
            input_elements=sum(v.elements for v in data),
            output_elements=sum(v.elements for v in written),
            parameters=own_elements,
            flops=_flops(node, kind, read, written),
            bytes_moved=moved,
        )
        yield operator, data_needs_gradient
        if bias is not None:
            out = written[0].elements
            bias_add = OpNode(
                op=f"onnx.{node.op_type}.bias", kind="BiasAdd", phase="forward",
                input_elements=out, output_elements=out, parameters=bias.elements,
                flops=out, bytes_moved=0,
            )  # fmt: skip
            yield bias_add, data_needs_gradient


def _bias_of(node: Any, values: Mapping[str, _Value], weights: set[str]) -> _Value | None:
    """The bias fused into a convolution or Gemm, when it has one."""
    fused = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2
    if not fused or node.input[2] not in weights:
        return None
    return values[node.input[2]]


def _kind_of_addition(node: Any, kind: str, values: Mapping[str, _Value], weights: set[str]) -> str:
    """An Add of a weight vector is a BiasAdd: how exporters write a Linear on 3-D input."""
    if kind == "AddV2" and any(n in weights and len(values[n].shape) == 1 for n in node.input):
        return "BiasAdd"
    return kind


def _is_optional(node: Any, name: str) -> bool:
    """Outputs after the first are often unused (Dropout's mask) and then left without a shape."""
    return name in list(node.output)[1:]


def _is_trainable(model: Any, name: str, value: _Value) -> bool:
    """Float weights train; a batch norm's running mean and variance, and constants, do not."""
    if value.elem_type not in _FLOATS or not value.shape:
        return False
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and name in list(node.input)[3:5]:
            return False
    return True


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _flops(node: Any, kind: str, read: list[_Value], written: list[_Value]) -> int:
    out = written[0].elements if written else 0
    if node.op_type in ("Conv", "ConvTranspose"):
        weight = read[1].shape
        places = read[0].elements if node.op_type == "ConvTranspose" else out
        return 2 * places * weight[1] * math.prod(weight[2:])
    if kind == "MatMul" and len(read) >= 2 and node.op_type != "Einsum":
        left = read[0].shape
        inner = left[0] if _attribute(node, "transA", 0) else left[-1]
        return 2 * out * inner
    if kind == "Recurrent":
        steps, batch, _ = read[0].shape
        # W: (directions, gates * hidden, input), R: (directions, gates * hidden, hidden)
        return 2 * steps * batch * (read[1].elements + read[2].elements)
    elements = max((v.elements for v in (*read, *written)), default=0)
    return ELEMENT_FLOPS.get(kind, 1) * elements
