"""Cache of result shapes by argument shapes: equal blocks of a network are computed once.

On the meta device torch computes shapes in Python, which is most of the time of tracing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from presage.features.from_torch.live import storage_key

_Result = tuple[torch.Size, tuple[int, ...], torch.dtype]


class ShapeCache:
    """Runs operators, or creates tensors like those that equal arguments returned before."""

    def __init__(self) -> None:
        self._cache: dict[Any, tuple[list[_Result | None], bool]] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of ``func``; only results of meta tensors are cached."""
        if not _depends_only_on_shapes(func):
            return func(*args, **kwargs)
        try:
            key = (func, _signature_of(args), _signature_of(tuple(kwargs.items())))
            cached = self._cache.get(key)
        except TypeError:  # some argument is not hashable
            return func(*args, **kwargs)
        if cached is not None:
            outputs, several = cached
            made = [None if layout is None else _make_tensor(layout) for layout in outputs]
            return tuple(made) if several else made[0]
        out = func(*args, **kwargs)
        tensors = list(out) if isinstance(out, tuple) else [out]
        if _are_new(tensors, args):
            layouts = [None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]
            self._cache[key] = (layouts, isinstance(out, tuple))
        return out


@cache
def _depends_only_on_shapes(func: Any) -> bool:
    """Return whether an operator returns new tensors and changes nothing."""
    schema = func._schema
    return (
        not schema.is_mutable
        and all(r.alias_info is None and str(r.type) == "Tensor" for r in schema.returns)
        and torch.Tag.data_dependent_output not in func.tags
        and torch.Tag.dynamic_output_shape not in func.tags
    )


def _signature_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise TypeError
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_signature_of, value))
    return (type(value), value)  # 1, 1.0 and True compare equal, but differ in type


def _make_tensor(layout: _Result) -> Tensor:
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _are_new(outputs: list[Any], args: tuple[Any, ...]) -> bool:
    """Return whether no output shares memory with an input, which some schemas do not declare."""
    if not all(t is None or (isinstance(t, Tensor) and t.is_meta) for t in outputs):
        return False
    inputs = {storage_key(a) for a in args if isinstance(a, Tensor)}
    return not any(t is not None and storage_key(t) in inputs for t in outputs)
