"""Shape rules of TensorFlow 2's lists of tensors, which its loops read and write.

A list has the shape of the tensor that its stacked items make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.shapes.windows import Rule, Shape
from presage.features.from_tensorflow.value import Value


def _reserved(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    count, shape = inputs[1].integers(), _item(inputs[0])
    return None if count is None else [(count[0], *(shape or ()))]


def _empty(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    most = inputs[1].integers() or [0]  # capacity that a loop fills
    return [(max(0, most[0]), *(_item(inputs[0]) or ()))]


def _item(shape: Value) -> Shape | None:
    """Return the declared shape of a list's items, if it is known."""
    sizes = shape.integers()
    return None if sizes is None or min(sizes, default=0) < 0 else tuple(sizes)


def _get(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [_item(inputs[2]) or inputs[0].shape[1:]]


def _set(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [(inputs[0].shape[0], *inputs[2].shape)]


def _push(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [(max(1, inputs[0].shape[0]), *inputs[1].shape)]


def _pop(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [inputs[0].shape, _item(inputs[1]) or inputs[0].shape[1:]]


def _stacked(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [inputs[0].shape]


def _length(_node: Node, _inputs: Sequence[Value]) -> list[Shape]:
    return [()]


def _rank(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [(len(inputs[0].shape) - 1,)]


LIST_RULES: Mapping[str, Rule] = {
    "TensorListReserve": _reserved,
    "EmptyTensorList": _empty,
    "TensorListGetItem": _get,
    "TensorListSetItem": _set,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListFromTensor": _stacked,
    "TensorListStack": _stacked,
    "TensorListLength": _length,
    "TensorListElementShape": _rank,
}
