"""Constant folding: numbers of a TensorFlow graph that known shapes determine.

The target of a reshape is often computed in the graph from the shape of its input. TensorFlow
computes it at run time; this module computes it for small tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.value import (
    MAX_FOLDED_ELEMENTS,
    Value,
    numpy_type,
    with_numbers,
)
from presage.system.arrays import AnyArray

View = Callable[[Node, AnyArray, Sequence[AnyArray]], AnyArray]


def _strided_slice(node: Node, tensor: AnyArray, bounds: Sequence[AnyArray]) -> AnyArray:
    begin, end, step = (array.ravel().tolist() for array in bounds)
    index: list[slice | int | None] = []
    ellipsis = [i for i in range(len(begin)) if node.integer("ellipsis_mask") >> i & 1]
    for i in range(len(begin)):
        if i in ellipsis:
            new = sum(node.integer("new_axis_mask") >> j & 1 for j in range(len(begin)))
            index.extend([slice(None)] * (tensor.ndim - (len(begin) - 1 - new)))
        elif node.integer("new_axis_mask") >> i & 1:
            index.append(None)
        elif node.integer("shrink_axis_mask") >> i & 1:
            index.append(begin[i])
        else:
            first = None if node.integer("begin_mask") >> i & 1 else begin[i]
            last = None if node.integer("end_mask") >> i & 1 else end[i]
            index.append(slice(first, last, step[i]))
    return np.asarray(tensor[tuple(index)])


def _slice(_node: Node, tensor: AnyArray, bounds: Sequence[AnyArray]) -> AnyArray:
    begin, size = (array.ravel().tolist() for array in bounds)
    ends = [None if n < 0 else start + n for start, n in zip(begin, size, strict=True)]
    return np.asarray(tensor[tuple(slice(b, e) for b, e in zip(begin, ends, strict=True))])


def _squeeze(node: Node, tensor: AnyArray, _numbers: Sequence[AnyArray]) -> AnyArray:
    axes = node.integers("squeeze_dims") or node.integers("axis")
    return np.asarray(np.squeeze(tensor, tuple(axes) if axes else None))


def _expand(_node: Node, tensor: AnyArray, numbers: Sequence[AnyArray]) -> AnyArray:
    return np.expand_dims(tensor, int(numbers[0].ravel()[0]))


def _transpose(_node: Node, tensor: AnyArray, numbers: Sequence[AnyArray]) -> AnyArray:
    return np.transpose(tensor, numbers[0].tolist())


# Operators that return another view of their first input, with parameters in the other inputs.
VIEWS: Mapping[str, View] = {
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "ExpandDims": _expand,
    "Transpose": _transpose,
}


def view(node: Node, inputs: Sequence[Value]) -> Value | None:
    """Return the value of a view; None if its parameters are unknown."""
    numbers = [value.numbers for value in inputs[1:]]
    known = [array for array in numbers if array is not None]
    if len(known) < len(numbers):
        return None
    first = inputs[0]
    # A tensor of any shape without memory: all its elements are one.
    whole = np.broadcast_to(np.int8(0), first.shape) if first.numbers is None else first.numbers
    shown = VIEWS[node.op](node, whole, known)
    value = Value(shown.shape, first.dtype)
    return value if first.numbers is None else with_numbers(value, shown)


def _gradient_axes(left: AnyArray, right: AnyArray) -> list[AnyArray]:
    """Return the axes over which the gradients of two broadcast operands are summed."""
    rank = max(len(left), len(right))
    padded = [[1] * (rank - len(shape)) + shape.tolist() for shape in (left, right)]
    return [
        np.array([i for i in range(rank) if own[i] == 1 and (other[i] != 1 or i < short)], np.int32)
        for own, other, short in (
            (padded[0], padded[1], rank - len(left)),
            (padded[1], padded[0], rank - len(right)),
        )
    ]


def _stitch(arrays: Sequence[AnyArray]) -> AnyArray:
    indices, values = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
    size = 1 + max(int(array.max(initial=-1)) for array in indices)
    stitched = np.zeros(min(size, MAX_FOLDED_ELEMENTS), values[0].dtype)
    for index, value in zip(indices, values, strict=True):
        stitched[index] = value
    return stitched


def _reduction(function: Callable[..., AnyArray]) -> Callable[[Node, Sequence[AnyArray]], AnyArray]:
    def reduce(node: Node, arrays: Sequence[AnyArray]) -> AnyArray:
        axes = tuple(arrays[1].ravel().tolist())
        return np.asarray(function(arrays[0], axis=axes, keepdims=node.flag("keep_dims")))

    return reduce


_BY_NUMPY: Mapping[str, Callable[..., AnyArray]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "RealDiv": np.true_divide, "FloorMod": np.mod,
    "Maximum": np.maximum, "Minimum": np.minimum, "Equal": np.equal, "NotEqual": np.not_equal,
    "Greater": np.greater, "Less": np.less, "GreaterEqual": np.greater_equal, "Neg": np.negative,
    "LogicalAnd": np.logical_and, "LogicalNot": np.logical_not, "Ceil": np.ceil,
    "Floor": np.floor, "Select": np.where, "SelectV2": np.where, "Identity": np.array,
    "StopGradient": np.array, "Snapshot": np.array, "EnsureShape": np.array, "Round": np.round,
    "InvertPermutation": np.argsort,
}  # fmt: skip
_WITH_NODE: Mapping[str, Callable[[Node, Sequence[AnyArray]], AnyArray]] = {
    "Pack": lambda node, arrays: np.stack(arrays, node.integer("axis")),
    "ConcatV2": lambda _, arrays: np.concatenate(arrays[:-1], int(arrays[-1])),
    "Prod": _reduction(np.prod),
    "Sum": _reduction(np.sum),
    "Max": _reduction(np.max),
    "Min": _reduction(np.min),
    "GatherV2": lambda _, arrays: np.take(arrays[0], arrays[1], int(arrays[2])),
    "Gather": lambda _, arrays: np.take(arrays[0], arrays[1], 0),
    "Reshape": lambda _, arrays: arrays[0].reshape(arrays[1].tolist()),
    "Range": lambda _, arrays: np.arange(*(array.item() for array in arrays)),
    "Fill": lambda _, arrays: np.full(arrays[0].tolist(), arrays[1]),
    "Tile": lambda _, arrays: np.tile(arrays[0], arrays[1].tolist()),
    "ZerosLike": lambda _, arrays: np.zeros_like(arrays[0]),
    "OnesLike": lambda _, arrays: np.ones_like(arrays[0]),
    "Cast": lambda _, arrays: arrays[0],
}
_MEASURES: Mapping[str, Callable[[Value], object]] = {
    "Size": lambda value: value.elements,
    "Rank": lambda value: len(value.shape),
    "TensorListLength": lambda value: value.shape[0],
    "TensorListElementShape": lambda value: value.shape[1:],
}
SHAPE_OF = frozenset({"Shape", "ShapeN", "VariableShape"})
# The shapes of their outputs are known only with their numbers.
NUMBERS_ONLY = frozenset({"BroadcastGradientArgs", "DynamicStitch", "ConcatOffset"})


def fold(node: Node, inputs: Sequence[Value], outputs: Sequence[Value]) -> list[Value]:
    """Return ``outputs`` with the numbers that the inputs determine, if they do."""
    if node.op == "TensorListPushBack":
        # Items of a loop's list are alike: numbers known in one iteration are known in all.
        return [replace(outputs[0], numbers=inputs[1].numbers)]
    if node.op == "TensorListPopBack":
        return [inputs[0], with_numbers(outputs[1], inputs[0].numbers)]
    if node.op in SHAPE_OF:
        found = [np.array(value.shape) for value in inputs]
    elif node.op in _MEASURES:
        found = [np.array(_MEASURES[node.op](inputs[0]))]
    else:
        arrays = [value.numbers for value in inputs if value.numbers is not None]
        small = all(value.elements <= MAX_FOLDED_ELEMENTS for value in outputs)
        found = _evaluate(node, arrays) if small and len(arrays) == len(inputs) else []
    if node.op in NUMBERS_ONLY and found:
        outputs = [Value(array.shape, inputs[0].dtype) for array in found]
    typed = [_cast(array, value) for array, value in zip(found, outputs, strict=False)]
    return [*map(with_numbers, outputs, typed), *outputs[len(typed) :]]


def _offsets(axis: int, shapes: Sequence[AnyArray]) -> list[AnyArray]:
    """Return the start of each part of a concatenation."""
    starts = np.cumsum([0, *(int(shape[axis]) for shape in shapes[:-1])])
    return [np.where(np.arange(len(shape)) == axis, start, 0)
            for shape, start in zip(shapes, starts, strict=True)]  # fmt: skip


_MANY: Mapping[str, Callable[[Node, Sequence[AnyArray]], list[AnyArray]]] = {
    "Unpack": lambda node, arrays: list(np.moveaxis(arrays[0], node.integer("axis"), 0)),
    "Split": lambda node, arrays: np.split(arrays[1], node.integer("num_split"), int(arrays[0])),
    "BroadcastGradientArgs": lambda _, arrays: _gradient_axes(arrays[0], arrays[1]),
    "DynamicStitch": lambda _, arrays: [_stitch(arrays)],
    "ConcatOffset": lambda _, arrays: _offsets(int(arrays[0]), arrays[1:]),
}


# Number of elements that these write, which the file may declare to be smaller.
_AMOUNTS: Mapping[str, Callable[[Sequence[AnyArray]], float]] = {
    "Fill": lambda arrays: math.prod(arrays[0].ravel().tolist()),
    "Tile": lambda arrays: math.prod((arrays[0].size, *arrays[1].ravel().tolist())),
    "Range": lambda arrays: (arrays[1].item() - arrays[0].item()) / arrays[2].item(),
}


def _evaluate(node: Node, arrays: Sequence[AnyArray]) -> list[AnyArray]:
    if node.op in _AMOUNTS and not _AMOUNTS[node.op](arrays) <= MAX_FOLDED_ELEMENTS:
        return []
    with np.errstate(all="ignore"):
        if node.op in _BY_NUMPY:
            return [np.asarray(_BY_NUMPY[node.op](*arrays))]
        if node.op in _WITH_NODE and arrays:
            return [np.asarray(_WITH_NODE[node.op](node, arrays))]
        return _MANY[node.op](node, arrays) if node.op in _MANY else []


def _cast(array: AnyArray, value: Value) -> AnyArray | None:
    """Return an array in the type of its tensor; None if an integer cannot hold it."""
    name = numpy_type(value.dtype)
    if name is None or not all(math.isfinite(n) for n in array.ravel().tolist()):
        return None
    with np.errstate(all="ignore"):
        return array.astype(name)
