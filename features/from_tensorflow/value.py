"""A tensor of a TensorFlow graph: its shape, its type and, for a small constant, its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from presage.errors import GraphError
from presage.features.from_tensorflow.messages import DATA_TYPES
from presage.system.arrays import AnyArray

FLOAT, DOUBLE, INT32, STRING = (DATA_TYPES[f"DT_{n}"] for n in "FLOAT DOUBLE INT32 STRING".split())
INT64, BOOL, RESOURCE, VARIANT = (
    DATA_TYPES[f"DT_{n}"] for n in "INT64 BOOL RESOURCE VARIANT".split()
)
# Numbers of tensors up to this size are kept: what Reshape, Pad and the like are given.
KEPT_ELEMENTS = 256
_BYTES = {
    "DOUBLE": 8, "INT64": 8, "UINT64": 8, "COMPLEX64": 8, "COMPLEX128": 16, "HALF": 2,
    "BFLOAT16": 2, "INT16": 2, "UINT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "QINT8": 1,
    "QUINT8": 1, "FLOAT8_E5M2": 1, "FLOAT8_E4M3FN": 1,
}  # fmt: skip
_SIZES = {DATA_TYPES[f"DT_{name}"]: size for name, size in _BYTES.items()}
_FLOATS = {DATA_TYPES[f"DT_{name}"] for name in "FLOAT DOUBLE HALF BFLOAT16".split()}
# Where a tensor's numbers are when they are not in its content, and how numpy calls their type.
_NUMPY = {
    "FLOAT": ("float32", "float_val"), "DOUBLE": ("float64", "double_val"),
    "INT32": ("int32", "int_val"), "INT16": ("int16", "int_val"), "INT8": ("int8", "int_val"),
    "UINT8": ("uint8", "int_val"), "INT64": ("int64", "int64_val"), "BOOL": ("bool", "bool_val"),
    "UINT32": ("uint32", "uint32_val"), "UINT64": ("uint64", "uint64_val"),
}  # fmt: skip
_NUMBERS = {DATA_TYPES[f"DT_{name}"]: row for name, row in _NUMPY.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Shape and type of a tensor; of a variable's handle, those of the variable.

    ``numbers`` are known where the graph fixes them, once every shape is.
    """

    shape: tuple[int, ...]
    dtype: int = FLOAT
    numbers: AnyArray | None = None

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a dimension below 0 in {list(self.shape)}")

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes; types narrower or rarer than the usual count as four."""
        return self.elements * _SIZES.get(self.dtype, 4)

    @property
    def is_float(self) -> bool:
        """Whether a gradient can flow into it."""
        return self.dtype in _FLOATS

    def integers(self) -> list[int] | None:
        """Its numbers in a row, when they are known."""
        return None if self.numbers is None else [int(n) for n in self.numbers.ravel()]


def with_numbers(value: Value, numbers: AnyArray | None) -> Value:
    """``value`` with its numbers, when they are known and few."""
    if numbers is None or numbers.size > KEPT_ELEMENTS or numbers.shape != value.shape:
        return value
    return replace(value, numbers=numbers)


def numpy_type(dtype: int) -> str | None:
    """What numpy calls a type; None for one it has not."""
    return _NUMBERS[dtype][0] if dtype in _NUMBERS else None


def constant(tensor: Any, where: str) -> Value:
    """A constant as the file holds it.

    Raises
    ------
    GraphError
        Its content does not fill its shape.
    """
    value = Value(tuple(dim.size for dim in tensor.tensor_shape.dim), tensor.dtype)
    if tensor.dtype not in _NUMBERS or value.elements > KEPT_ELEMENTS:
        return value
    name, field = _NUMBERS[tensor.dtype]
    try:
        if tensor.tensor_content:
            numbers = np.frombuffer(tensor.tensor_content, np.dtype(name).newbyteorder("<"))
        else:
            numbers = _filled(getattr(tensor, field), value.elements, name)
        return with_numbers(value, numbers.reshape(value.shape))
    except ValueError as error:
        raise GraphError(
            f"{where} holds other numbers than its shape {list(value.shape)} says; "
            "export the graph again"
        ) from error


def _filled(numbers: Sequence[float], count: int, name: str) -> AnyArray:
    """The last number stands for the rest; none at all for zeros."""
    given = np.array(numbers or [0], dtype=name)
    return np.concatenate([given, np.repeat(given[-1:], max(0, count - len(given)))])[:count]
