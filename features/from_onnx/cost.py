"""FLOPs of ONNX operators that multiply matrices, computed from the shapes of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from presage.features.graph.op_kinds import convolution_kind

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


@dataclass(frozen=True, slots=True)
class Value:
    """Shape and element type of a tensor in the file."""

    shape: tuple[int, ...]
    elem_type: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes; types that are narrower or rarer than these count as four bytes."""
        return self.elements * _BYTES.get(self.elem_type, 4)

    @property
    def is_float(self) -> bool:
        """Whether a gradient can flow into it."""
        return self.elem_type in _FLOATS

    @property
    def is_weight(self) -> bool:
        """Whether a constant of the file may be trained: a single number is a factor."""
        return self.is_float and bool(self.shape)


Operands = Sequence[Value | None]


def matrix_flops(node: Any, operands: Operands, out: Value) -> int | None:
    """Return the FLOPs of an operator of a matrix kind; a multiply-add counts as two.

    Parameters
    ----------
    operands : sequence of Value or None
        By position in ``node.input``; None if it is omitted or has no shape.

    Returns
    -------
    int or None
        None if the FLOPs cannot be counted: the operator is then treated as unknown.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    count = _COUNTS.get((domain, node.op_type))
    return None if count is None else count(node, operands, out)


def classify_convolution(node: Any, operands: Operands) -> str:
    """Return the kind of a convolution whose FLOPs could be counted."""
    weight = _operand(operands, 3 if node.op_type == "QLinearConv" else 1)
    channels, *kernel = weight.shape[1:] if weight else (0,)
    return convolution_kind(kernel, attribute(node, "group", 1), channels)


def _convolution(weight_at: int) -> Callable[[Any, Operands, Value], int | None]:
    """Count a multiply-add for every kernel element at every position of the output."""

    def count(_node: Any, operands: Operands, out: Value) -> int | None:
        weight = _operand(operands, weight_at)
        if weight is None:
            return None
        # Channels in the kernel's shape are already divided by groups.
        return 2 * out.elements * math.prod(weight.shape[1:])

    return count


def _transposed_convolution(_node: Any, operands: Operands, _out: Value) -> int | None:
    image, weight = _operand(operands, 0), _operand(operands, 1)
    if image is None or weight is None:
        return None
    return 2 * image.elements * math.prod(weight.shape[1:])


def _matmul(node: Any, operands: Operands, out: Value) -> int | None:
    left = _operand(operands, 0)
    if left is None or not left.shape:
        return None
    inner = left.shape[0] if attribute(node, "transA", 0) else left.shape[-1]
    return 2 * out.elements * inner


def _einsum(node: Any, operands: Operands, _out: Value) -> int | None:
    """Count a multiply-add for every combination of the indices.

    With three or more operands the order of contraction, hence the cost, is unknown.
    """
    equation = attribute(node, "equation", b"").decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if len(terms) > 2 or len(terms) != len(operands):
        return None
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        labels = None if operand is None else _labels(term, len(operand.shape))
        if operand is None or labels is None:
            return None
        for label, size in zip(labels, operand.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))  # a broadcast dimension is 1
    return len(terms) * math.prod(sizes.values())


def _labels(term: str, rank: int) -> list[str] | None:
    """Return an index name per dimension; those of an ellipsis are counted from its right."""
    before, ellipsis, after = term.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not ellipsis):
        return None
    return [*before, *(f"...{i}" for i in range(hidden, 0, -1)), *after]


def _recurrent(_node: Any, operands: Operands, _out: Value) -> int | None:
    data, weight, recurrence = (_operand(operands, i) for i in range(3))
    if data is None or weight is None or recurrence is None:
        return None
    # W: (directions, gates * hidden, input), R: (directions, gates * hidden, hidden)
    return 2 * math.prod(data.shape[:2]) * (weight.elements + recurrence.elements)


def _attention(past_at: int) -> Callable[[Any, Operands, Value], int | None]:
    """Count queries times keys, and scores times values; a causal mask has no effect."""

    def count(_node: Any, operands: Operands, out: Value) -> int | None:
        query, key, past = _operand(operands, 0), _operand(operands, 1), _operand(operands, past_at)
        # (batch, heads, length, head) or (batch, length, heads x head). A packed key has 5
        # dimensions, or is in the query.
        if query is None or key is None or len(query.shape) > 4 or len(key.shape) not in (3, 4):
            return None
        keys = key.shape[-2] + (past.shape[-2] if past else 0)
        return 2 * keys * (query.elements + out.elements)

    return count


def _projected_attention(node: Any, operands: Operands, out: Value) -> int | None:
    """Count ``com.microsoft.Attention``: one product computes queries, keys and values."""
    data, weight, past = _operand(operands, 0), _operand(operands, 1), _operand(operands, 4)
    if data is None or weight is None or len(data.shape) != 3 or len(weight.shape) != 2:
        return None
    batch, length, inner = data.shape
    columns = weight.shape[1]
    query_width = int(attribute(node, "qkv_hidden_sizes", [columns // 3])[0])
    keys = length + (past.shape[-2] if past else 0)
    projection = 2 * batch * length * inner * columns
    return projection + 2 * keys * (batch * length * query_width + out.elements)


_COUNTS: Mapping[tuple[str, str], Callable[[Any, Operands, Value], int | None]] = {
    ("", "Conv"): _convolution(weight_at=1),
    ("", "ConvInteger"): _convolution(weight_at=1),
    ("", "QLinearConv"): _convolution(weight_at=3),
    ("", "ConvTranspose"): _transposed_convolution,
    ("", "MatMul"): _matmul,
    ("", "MatMulInteger"): _matmul,
    ("", "QLinearMatMul"): _matmul,
    ("", "Gemm"): _matmul,
    ("", "Einsum"): _einsum,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    ("", "Attention"): _attention(past_at=4),
    ("com.microsoft", "MultiHeadAttention"): _attention(past_at=6),
    ("com.microsoft", "Attention"): _projected_attention,
}


def _operand(operands: Operands, position: int) -> Value | None:
    return operands[position] if position < len(operands) else None


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or ``default`` without it."""
    for found in node.attribute:
        if found.name == name:
            return onnx.helper.get_attribute_value(found)
    return default
