"""Operator graph of an ONNX file: the forward pass as written, the backward pass by rule.

Weights contribute only shape and type: their values are dropped after parsing, and external data
may be absent. An ONNX file has no backward pass; for a training job
:mod:`presage.features.graph.backward` adds the one that autograd would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from presage.errors import GraphError
from presage.features.from_onnx.cost import Value, classify_convolution, matrix_flops
from presage.features.from_onnx.folding import drop_layouts
from presage.features.from_onnx.fusion import fuse_attention
from presage.features.from_onnx.memory import Activations
from presage.features.from_onnx.shapes import bind_dimensions, infer_shapes, load_model
from presage.features.graph.backward import training_step
from presage.features.graph.graph_file import graph_errors
from presage.features.graph.op_graph import OpGraph, OpNode, merge_equal
from presage.features.graph.op_kinds import ONNX_FREE, element_flops, onnx_kind
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate


def read_onnx(
    path: Path,
    *,
    batch_size: int,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "sgd",
    training: bool = True,
) -> OpGraph:
    """Read the operator graph of the model at ``path``.

    Parameters
    ----------
    batch_size : int
        Replaces the first dimension of every input, if it is symbolic.
    dims : mapping of str to int, optional
        Values of the other symbolic dimensions, by their names in the file, or by position
        ("1") for dimensions without a name.
    optimizer : {"sgd", "adam", "adamw"}
        Optimizer of a training job.
    training : bool
        Whether to add the backward pass and the optimizer.

    Raises
    ------
    GraphError
        The file is missing, truncated, not ONNX, or leaves a shape unknown; a dimension is less
        than 1, or contradicts the batch size.
    """
    with graph_errors(path):
        return _read(path, batch_size, dims or {}, optimizer, training=training)


def _read(
    path: Path, batch_size: int, dims: Mapping[str, int], optimizer: str, *, training: bool
) -> OpGraph:
    model = load_model(path)
    bind_dimensions(model, batch_size, dims, path)
    values = fuse_attention(model, infer_shapes(model, path))
    weights = {i.name: Value(tuple(i.dims), i.data_type) for i in model.graph.initializer}
    trained = _trainable(model, weights)
    laid_out = drop_layouts(model)
    held = weights.keys() | laid_out
    forward = list(_forward(model, values, held, {*trained, *laid_out}, path))
    trainable = [weights[name].elements for name in trained]
    read = {name for node in model.graph.node for name in node.input}
    inputs = [i for i in model.graph.input if i.name in read and i.name not in weights]
    elements = max(1, sum(values[i.name].elements for i in inputs) // batch_size)
    batch_bytes = sum(values[i.name].nbytes for i in inputs)
    weight_bytes = sum(w.nbytes for w in weights.values())
    activations = Activations(model, values, held)
    if training:
        return training_step(
            forward,
            parameter_sizes=trainable,
            weight_bytes=weight_bytes,
            activation_bytes=activations.saved_bytes(),
            batch_bytes=batch_bytes,
            input_elements=elements,
            optimizer=optimizer,
        )
    peak = activations.peak_bytes()
    memory = MemoryEstimate(weight_bytes, 0, 0, 0, workspace_bytes=peak, batch_bytes=batch_bytes)
    return OpGraph(
        nodes=merge_equal(node for node, _ in forward),
        parameters=sum(trainable),
        peak_live_bytes=memory.peak_bytes,
        input_elements=elements,
        memory=memory,
    )


def _forward(
    model: Any,
    values: Mapping[str, Value],
    weights: set[str],
    trained: set[str],
    path: Path,
) -> Iterator[tuple[OpNode, bool]]:
    """Yield each operator, and whether the data it reads needs a gradient."""
    needs_gradient = set(trained)
    for node in model.graph.node:
        data_needs_gradient = any(n in needs_gradient and n not in trained for n in node.input)
        if any(n in needs_gradient for n in node.input):
            needs_gradient.update(node.output)
        if node.op_type in ONNX_FREE or _is_select(node, values):
            continue
        # Outputs after the first are often unused (Dropout's mask) and then have no shape.
        optional = set(node.output[1:])
        for name in (*node.input, *node.output):
            if name and name not in values and name not in optional:
                raise GraphError(
                    f"{path}: tensor {name!r} of {node.op_type} {node.name!r} has no shape; "
                    "run onnx.shape_inference.infer_shapes on the file, or export it with "
                    "static shapes"
                )
        for operator in _operators(node, values, weights):
            yield operator, data_needs_gradient


def _operators(node: Any, values: Mapping[str, Value], weights: set[str]) -> Iterator[OpNode]:
    """Yield the operator as written, then the addition of a bias that is fused into it."""
    read = _present(node.input, values)
    written = _present(node.output, values)
    data = _present((name for name in node.input if name not in weights), values)
    own = sum(values[n].elements for n in node.input if n in weights and values[n].is_float)
    bias = _fused_bias(node, values, weights)
    kind, flops = _kind_and_flops(node, values, weights)
    if kind == "Embedding" and read:
        moved = 2 * _nbytes(written) + _nbytes(data)  # reads the rows it needs, not the table
    else:
        moved = _nbytes(read) + _nbytes(written)
    yield OpNode(
        op=f"onnx.{node.domain + '.' if node.domain else ''}{node.op_type}",
        kind=kind,
        phase="forward",
        input_elements=_elements(data),
        output_elements=_elements(written),
        parameters=own - (bias.elements if bias else 0),
        flops=flops,
        bytes_moved=moved,
    )
    if bias is not None:
        yield _bias_addition(node.op_type, written[0].elements, bias)


def _bias_addition(op_type: str, out: int, bias: Value) -> OpNode:
    return OpNode(
        op=f"onnx.{op_type}.bias", kind="BiasAdd", phase="forward",
        input_elements=out, output_elements=out, parameters=bias.elements,
        flops=out, bytes_moved=0,
    )  # fmt: skip


def _present(names: Iterable[str], values: Mapping[str, Value]) -> list[Value]:
    """Return the values of those names that have one; an optional input may have none."""
    return [values[name] for name in names if name in values]


def _elements(values: Iterable[Value]) -> int:
    return sum(value.elements for value in values)


def _nbytes(values: Iterable[Value]) -> int:
    return sum(value.nbytes for value in values)


def _kind_and_flops(node: Any, values: Mapping[str, Value], weights: set[str]) -> tuple[str, int]:
    """Return kind and FLOPs; a product whose FLOPs cannot be counted is ``Other``."""
    kind = onnx_kind(node.op_type, node.domain)
    operands = [values.get(name) for name in node.input]
    out = next((values[name] for name in node.output if name in values), None)
    if kind in MATRIX_KINDS:
        flops = None if out is None else matrix_flops(node, operands, out)
        if flops is not None:
            return classify_convolution(node, operands) if kind == "Conv2D" else kind, flops
        kind = "Other"
    # An Add of a weight vector is a BiasAdd: exporters write a Linear on 3-D input like this.
    if kind == "AddV2" and any(n in weights and len(values[n].shape) == 1 for n in node.input):
        kind = "BiasAdd"
    tensors = (*operands, *(values.get(name) for name in node.output))
    return kind, element_flops(kind, max((v.elements for v in tensors if v), default=0))


def _fused_bias(node: Any, values: Mapping[str, Value], weights: set[str]) -> Value | None:
    """Return the bias fused into a convolution or Gemm, or None."""
    fused = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2
    if not fused or node.input[2] not in weights:
        return None
    return values[node.input[2]]


def _is_select(node: Any, values: Mapping[str, Value]) -> bool:
    """Return whether a Gather takes one slice along a dimension: a view, not a lookup."""
    return node.op_type == "Gather" and getattr(values.get(node.input[1]), "shape", None) == ()


def _trainable(model: Any, weights: Mapping[str, Value]) -> list[str]:
    """Return the float weights, without constants and the running statistics of batch norms."""
    running = {
        name
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for name in list(node.input)[3:5]
    }
    return [n for n, w in weights.items() if w.is_weight and n not in running]
