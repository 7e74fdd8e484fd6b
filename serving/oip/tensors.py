"""Conversion of a request's input tensors to arrays, with checks of name, type, shape and size.

Errors do not repeat texts of the request, which may be private. They contain the name of the
tensor, the expectation, lengths, counts, shapes and words of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from presage.errors import InvalidTensorError
from presage.serving.codec.request_limits import MAX_MEMBERS, MAX_ROWS
from presage.serving.oip.served_model import DATATYPE, ServedModel, TensorSpec
from presage.system.arrays import Float32s

FLOAT32 = np.dtype("<f4")
_CONTENTS = "fp32_contents"
# Extensions that change the meaning of a tensor, so that they must not be ignored.
_NOT_SERVED = ("shared_memory_region", "classification")
_DATATYPES = frozenset(
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES".split()
)
_MAX_SHOWN_AXES = 8


def read_inputs(request: Any, model: ServedModel) -> dict[str, Float32s]:
    """Return the input arrays by name; raw contents become views of the request's bytes.

    Raises
    ------
    InvalidTensorError
        The inputs are not those of the model, or their contents do not match their shapes.
    """
    tensors = _by_name(request.inputs, model)
    shapes = {name: _shape(tensor, model.inputs[name]) for name, tensor in tensors.items()}
    raw = request.raw_input_contents
    if not raw:
        return {name: _typed(tensor, name, shapes[name]) for name, tensor in tensors.items()}
    _check_only_raw(raw, tensors, model)
    return {
        name: _raw(content, name, shapes[name]) for name, content in zip(tensors, raw, strict=True)
    }


def raw_tensor(content: bytes, shape: tuple[int, ...]) -> Float32s:
    """Return raw contents as an array of that shape."""
    return np.frombuffer(content, FLOAT32).reshape(shape)


def check_parameters(tensor: Any, what: str) -> None:
    """Raise InvalidTensorError for parameters that request unsupported extensions."""
    for name in _NOT_SERVED if tensor.parameters else ():
        if name in tensor.parameters:
            raise InvalidTensorError(f"{what}: parameter {name} is not supported; omit it")


def _by_name(tensors: Sequence[Any], model: ServedModel) -> dict[str, Any]:
    """Return the input tensors by name in their order; each must be known and occur once."""
    found: dict[str, Any] = {}
    for position, tensor in enumerate(tensors):
        name = tensor.name
        if name not in model.inputs:
            raise InvalidTensorError(f"inputs[{position}]: unknown name; {model.takes}")
        if name in found:
            raise InvalidTensorError(f"inputs[{position}]: {name} occurs twice; give it once")
        found[name] = tensor
    for name in model.inputs:
        if name not in found:
            raise InvalidTensorError(
                f"{name}: is missing among the {len(found)} inputs; {model.takes}"
            )
    return found


def _shape(tensor: Any, spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of a tensor after checking its data type, parameters and shape."""
    _check_datatype(tensor, spec.name)
    check_parameters(tensor, spec.name)
    shape = tuple(tensor.shape[:])
    expected = spec.shape
    free = shape[: len(spec.axes)]
    if len(shape) != len(expected) or min(free) < 1 or shape[len(free) :] != expected[len(free) :]:
        raise InvalidTensorError(
            f"{spec.name}: shape is {_shape_text(shape)}, must be {spec.layout} with at least 1 of "
            "each"
        )
    _check_size(free, spec)
    return shape


def _check_datatype(tensor: Any, name: str) -> None:
    if tensor.datatype != DATATYPE:
        datatype = tensor.datatype if tensor.datatype in _DATATYPES else "unknown to the protocol"
        raise InvalidTensorError(
            f"{name}: datatype is {datatype}, must be {DATATYPE}; convert the values"
        )


def _check_size(free: tuple[int, ...], spec: TensorSpec) -> None:
    """Check the limits of ``presage.v1``; Python's integers do not overflow."""
    rows = math.prod(free)
    if rows > MAX_ROWS:
        raise InvalidTensorError(
            f"{spec.name}: {rows} {' x '.join(spec.axes)}, the limit is {MAX_ROWS}; split the "
            "request"
        )
    # The work grows with the square of the members.
    if len(free) == 2 and free[1] > MAX_MEMBERS:
        raise InvalidTensorError(
            f"{spec.name}: {free[1]} members per co-location, the limit is {MAX_MEMBERS}"
        )


def _shape_text(shape: tuple[int, ...]) -> str:
    if len(shape) > _MAX_SHOWN_AXES:
        return f"one of {len(shape)} axes"
    return str(list(shape))


def _check_only_raw(raw: Sequence[bytes], tensors: Mapping[str, Any], model: ServedModel) -> None:
    for name, tensor in tensors.items():
        if tensor.HasField("contents") and tensor.contents.ListFields():
            raise InvalidTensorError(
                f"{name}: has contents as well as raw_input_contents; give all inputs in one form"
            )
    if len(raw) != len(tensors):
        raise InvalidTensorError(
            f"raw_input_contents has {len(raw)} entries, must have {len(tensors)}: one per input, "
            f"in order; {model.takes}"
        )


def _raw(content: bytes, name: str, shape: tuple[int, ...]) -> Float32s:
    n_bytes = math.prod(shape) * FLOAT32.itemsize
    if len(content) != n_bytes:
        raise InvalidTensorError(
            f"{name}: {len(content)} bytes of raw contents, must be {n_bytes}: "
            f"{FLOAT32.itemsize} for each of {list(shape)}"
        )
    return raw_tensor(content, shape)


def _typed(tensor: Any, name: str, shape: tuple[int, ...]) -> Float32s:
    count = math.prod(shape)
    fields = [field.name for field, _ in tensor.contents.ListFields()]
    if fields != [_CONTENTS]:
        found = f"has {' and '.join(fields)}" if fields else "has neither raw nor typed contents"
        raise InvalidTensorError(
            f"{name}: {found}, must have {count} values in {_CONTENTS} alone, or all inputs in "
            "raw_input_contents"
        )
    found_count = len(tensor.contents.fp32_contents)
    if found_count != count:
        raise InvalidTensorError(
            f"{name}: {found_count} values in {_CONTENTS}, must be {count}: "
            f"one for each of {list(shape)}"
        )
    return _unpacked(tensor.contents, count).reshape(shape)


def _unpacked(contents: Any, count: int) -> Float32s:
    """Return the values of ``fp32_contents``, the only field that is set.

    Its serialized form is a tag byte, a varint length and the floats as in memory. numpy reads them
    100 times as fast as protobuf converts single floats.
    """
    n_bytes = count * FLOAT32.itemsize
    start = 1 + math.ceil(n_bytes.bit_length() / 7)
    return np.frombuffer(contents.SerializeToString(), FLOAT32, count, offset=start)
