"""Conversion of a TensorFlow node to an operator with its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.features.from_tensorflow.cost import (
    classify_convolution,
    matrix_flops,
    update_flops,
)
from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.value import Value
from presage.features.from_tensorflow.weights import Weights
from presage.features.graph.op_graph import OpNode
from presage.features.graph.op_kinds import element_flops, tensorflow_kind
from presage.features.graph.roofline import MATRIX_KINDS

# Position of the item among the inputs and outputs of a list operator: third input, last output...
_ITEM_AT = {
    "TensorListGetItem": -1,
    "TensorListSetItem": 2,
    "TensorListPushBack": 1,
    "TensorListPopBack": -1,
}


def make_operator(
    node: Node, phase: str, values: Mapping[str, Value], weights: Weights, count: int
) -> OpNode:
    """Return the operator of ``node``, ``count`` times."""
    read = [values[tensor] for tensor in node.inputs]
    data = [values[tensor] for tensor in node.inputs if weights.is_data(tensor)]
    written = [values[tensor] for tensor in node.outputs(values)]
    kind, flops = _kind_and_flops(node, phase, read, written, values, weights)
    if tensorflow_kind(node.op) == "Update":
        variables = [weights.values_by_name[name] for name in weights.viewed_by(node.inputs)]
        written = variables[:1]
        moved, flops = _update(node, variables, read, data)
    else:
        moved = _moved(node, kind, read, written)
    return OpNode(
        op=f"tensorflow.{node.op}",
        kind=kind,
        phase=phase,
        input_elements=sum(value.elements for value in data),
        output_elements=sum(value.elements for value in written),
        parameters=weights.trained_elements(node.inputs),
        flops=flops,
        bytes_moved=moved,
        count=count,
    )


def _kind_and_flops(
    node: Node,
    phase: str,
    read: Sequence[Value],
    written: Sequence[Value],
    values: Mapping[str, Value],
    weights: Weights,
) -> tuple[str, int]:
    """Return kind and FLOPs; a product whose FLOPs cannot be counted is ``Other``."""
    kind = tensorflow_kind(node.op)
    if kind in MATRIX_KINDS:
        flops = matrix_flops(node, read, written[0])
        if flops is not None:
            is_convolution = kind == "Conv2D"
            return classify_convolution(node, read, written[0]) if is_convolution else kind, flops
        kind = "Other"
    if phase == "optimizer":
        kind = "Update"
    # An Add of a vector of weights is a BiasAdd, however it is written.
    elif kind == "AddV2" and phase == "forward":
        shown = [t for t in node.inputs if weights.viewed_by([t]) and len(values[t].shape) == 1]
        if len(shown) == 1 and any(weights.is_data(t) for t in node.inputs):
            kind = "BiasAdd"
    most = max((value.elements for value in (*read, *written)), default=0)
    return kind, element_flops(kind, most)


def _moved(node: Node, kind: str, read: Sequence[Value], written: Sequence[Value]) -> int:
    """Return the bytes read and written."""
    if node.op in _ITEM_AT:  # the item of the list, not the list
        return 2 * (*read, *written)[_ITEM_AT[node.op]].nbytes
    if kind == "Embedding" and read:
        # A lookup reads the rows it needs, not the table.
        return 2 * sum(v.nbytes for v in written) + sum(v.nbytes for v in read[1:])
    return sum(value.nbytes for value in (*read, *written))


def _update(
    node: Node, variables: Sequence[Value], read: Sequence[Value], data: Sequence[Value]
) -> tuple[int, int]:
    """Return bytes and FLOPs of an update, which reads and writes a variable and its state."""
    if "Sparse" in node.op or "Scatter" in node.op:
        # A sparse update touches the rows that have a gradient, not the table.
        rows = max(data, key=lambda value: value.elements, default=Value((0,)))
        return rows.nbytes * (1 + 2 * len(variables)), update_flops(node, rows.elements)
    elements = variables[0].elements if variables else sum(value.elements for value in data)
    moved = sum(value.nbytes for value in (*read, *variables))
    return moved, update_flops(node, elements)
