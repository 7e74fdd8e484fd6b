"""Shape rules of TensorFlow operators that concatenate, split, index or fill arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.shapes.windows import Rule, Shape, shape_from_input
from presage.features.from_tensorflow.value import Value

MAX_OUTPUTS = 4096  # per operator


def _concat(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    parts, at = (inputs[1:], inputs[0]) if node.op == "Concat" else (inputs[:-1], inputs[-1])
    axis = at.integers()
    if axis is None:
        return None
    shape = list(parts[0].shape)
    shape[axis[0]] = sum(part.shape[axis[0]] for part in parts)
    return [tuple(shape)]


def _pack(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    shape = list(inputs[0].shape)
    axis = node.integer("axis")
    shape.insert(axis % (len(shape) + 1), len(inputs))
    return [tuple(shape)]


def _unpack(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    shape = list(inputs[0].shape)
    parts = shape.pop(node.integer("axis"))
    return [tuple(shape)] * min(parts, MAX_OUTPUTS)


def _split(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    axis, shape, parts = inputs[0].integers(), list(inputs[1].shape), node.integer("num_split", 1)
    if axis is None:
        return None
    shape[axis[0]] //= parts
    return [tuple(shape)] * min(parts, MAX_OUTPUTS)


def _split_sizes(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    sizes, axis = inputs[1].integers(), inputs[2].integers()
    if sizes is None or axis is None:
        return None
    whole = inputs[0].shape[axis[0]]
    rest = whole - sum(size for size in sizes if size >= 0)
    shape = list(inputs[0].shape)
    parts = []
    for size in sizes:
        shape[axis[0]] = rest if size < 0 else size
        parts.append(tuple(shape))
    return parts


def _reshape(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    sizes = inputs[1].integers()
    if sizes is None:
        return None
    known = math.prod(size for size in sizes if size >= 0)
    rest = inputs[0].elements // known if known else 0
    shape = tuple(rest if size < 0 else size for size in sizes)
    if math.prod(shape) != inputs[0].elements:
        raise ValueError(f"{inputs[0].elements} elements do not fit {sizes}")
    return [shape]


def _gather(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    table, indices = inputs[0].shape, inputs[1].shape
    axis = inputs[2].integers() if len(inputs) > 2 else [0]
    if axis is None:
        return None
    at = axis[0] % len(table)
    return [table[:at] + indices[node.integer("batch_dims") :] + table[at + 1 :]]


def _gather_nd(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    table, indices = inputs[0].shape, inputs[1].shape
    return [indices[:-1] + table[indices[-1] :]]


def _pad(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    margins = inputs[1].numbers
    if margins is None:
        return None
    sign = -1 if node.op == "MirrorPadGrad" else 1
    rows = zip(inputs[0].shape, margins, strict=True)
    return [tuple(size + sign * int(margin.sum()) for size, margin in rows)]


def _tile(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    times = inputs[1].integers()
    if times is None:
        return None
    return [tuple(size * n for size, n in zip(inputs[0].shape, times, strict=True))]


def _one_hot(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    depth, shape = inputs[1].integers(), list(inputs[0].shape)
    if depth is None:
        return None
    axis = node.integer("axis", -1)
    shape.insert(len(shape) if axis < 0 else axis, depth[0])
    return [tuple(shape)]


def _top_k(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    k = inputs[1].integers() if len(inputs) > 1 else [node.integer("k")]
    return None if k is None else [(*inputs[0].shape[:-1], k[0])] * 2


def _arg(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    axis = inputs[1].integers()
    shape = list(inputs[0].shape)
    if axis is None:
        return None
    shape.pop(axis[0])
    return [tuple(shape)]


def _segments(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    count = inputs[2].integers()
    return None if count is None else [(count[0], *inputs[0].shape[len(inputs[1].shape) :])]


def _range(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    if any(value.numbers is None for value in inputs):
        return None
    start, limit, step = (float(v.numbers) for v in inputs if v.numbers is not None)
    return [(max(0, math.ceil((limit - start) / step)),)]


_RULES_BY_OPS: Mapping[str, Rule] = {
    "ArgMax ArgMin": _arg,
    "ConcatV2 Concat": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split,
    "SplitV": _split_sizes,
    "Reshape": _reshape,
    "Gather GatherV2 ResourceGather": _gather,
    "GatherNd ResourceGatherNd": _gather_nd,
    "Pad PadV2 MirrorPad MirrorPadGrad": _pad,
    "Tile": _tile,
    "Fill RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt Empty "
    "StatelessRandomUniform StatelessRandomNormal StatelessRandomUniformV2 StatelessRandomNormalV2 "
    "StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
    "StridedSliceGrad": shape_from_input(0),
    "BroadcastTo": shape_from_input(1),
    "ScatterNd": shape_from_input(2),
    "OneHot": _one_hot,
    "TopK TopKV2": _top_k,
    "UnsortedSegmentSum UnsortedSegmentMax": _segments,
    "Range": _range,
}
ARRAY_RULES: Mapping[str, Rule] = {
    op: rule for ops, rule in _RULES_BY_OPS.items() for op in ops.split()
}
