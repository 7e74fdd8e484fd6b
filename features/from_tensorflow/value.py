"""Tensor of a TensorFlow graph: its shape, its type and, for a small constant, its numbers."""

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
# Numbers of tensors up to this size are kept: parameters of Reshape, Pad and other operators.
MAX_FOLDED_ELEMENTS = 256
_BYTES = {
    "DOUBLE": 8, "INT64": 8, "UINT64": 8, "COMPLEX64": 8, "COMPLEX128": 16, "HALF": 2,
    "BFLOAT16": 2, "INT16": 2, "UINT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "QINT8": 1,
    "QUINT8": 1, "FLOAT8_E5M2": 1, "FLOAT8_E4M3FN": 1,
}  # fmt: skip
_SIZES = {DATA_TYPES[f"DT_{name}"]: size for name, size in _BYTES.items()}
_FLOATS = {DATA_TYPES[f"DT_{name}"] for name in "FLOAT DOUBLE HALF BFLOAT16".split()}
# Field of a tensor's numbers when they are not in its content, and numpy's name of their type.
_NUMPY = {
    "FLOAT": ("float32", "float_val"), "DOUBLE": ("float64", "double_val"),
    "INT32": ("int32", "int_val"), "INT16": ("int16", "int_val"), "INT8": ("int8", "int_val"),
    "UINT8": ("uint8", "int_val"), "INT64": ("int64", "int64_val"), "BOOL": ("bool", "bool_val"),
    "UINT32": ("uint32", "uint32_val"), "UINT64": ("uint64", "uint64_val"),
}  # fmt: skip
_NUMBERS = {DATA_TYPES[f"DT_{name}"]: row for name, row in _NUMPY.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Shape and type of a tensor; for a variable's handle, those of the variable.

    ``numbers`` are set if the graph determines them once every shape is known.
    """

    shape: tuple[int, ...]
    dtype: int = FLOAT
    numbers: AnyArray | None = None

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative dimension in {list(self.shape)}")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes; types that are narrower or rarer than the usual count as four bytes."""
        return self.elements * _SIZES.get(self.dtype, 4)

    @property
    def is_float(self) -> bool:
        """Whether a gradient can flow into it."""
        return self.dtype in _FLOATS

    def integers(self) -> list[int] | None:
        """Return its numbers as a flat list, if they are known."""
        return None if self.numbers is None else [int(n) for n in self.numbers.ravel()]


def with_numbers(value: Value, numbers: AnyArray | None) -> Value:
    """Return ``value`` with its numbers, if they are known and few."""
    if numbers is None or numbers.size > MAX_FOLDED_ELEMENTS or numbers.shape != value.shape:
        return value
    return replace(value, numbers=numbers)


def numpy_type(dtype: int) -> str | None:
    """Return numpy's name of a type; None if numpy lacks it."""
    return _NUMBERS[dtype][0] if dtype in _NUMBERS else None


def constant(tensor: Any, where: str) -> Value:
    """Return a constant as the file holds it.

    Raises
    ------
    GraphError
        Its content does not match its shape.
    """
    value = Value(tuple(dim.size for dim in tensor.tensor_shape.dim), tensor.dtype)
    if tensor.dtype not in _NUMBERS or value.elements > MAX_FOLDED_ELEMENTS:
        return value
    name, field = _NUMBERS[tensor.dtype]
    try:
        if tensor.tensor_content:
            numbers = np.frombuffer(tensor.tensor_content, np.dtype(name).newbyteorder("<"))
        else:
            numbers = _fill(getattr(tensor, field), value.elements, name)
        return with_numbers(value, numbers.reshape(value.shape))
    except ValueError as error:
        raise GraphError(
            f"{where}: its numbers do not match its shape {list(value.shape)}; "
            "export the graph again"
        ) from error


def _fill(numbers: Sequence[float], count: int, name: str) -> AnyArray:
    """Return ``count`` numbers: the last one is repeated, and an empty list means zeros."""
    given = np.array(numbers or [0], dtype=name)
    return np.concatenate([given, np.repeat(given[-1:], max(0, count - len(given)))])[:count]
