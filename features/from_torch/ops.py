"""Properties of torch operators, by schema: whether one computes, allocates, or returns a view."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

# Operators that allocate without writing, or read one number. Views are marked in their schema.
_FREE = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided detach _local_scalar_dense "
    "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk _reshape_alias "
    "as_strided_ resize_".split()
)


@cache
def is_view(func: Any) -> bool:
    """Return whether all outputs of an operator are unchanged memory of its inputs."""
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@cache
def is_free(func: Any) -> bool:
    """Return whether an operator moves no byte of a tensor's content."""
    name = func.overloadpacket.__name__
    return is_view(func) or name in _FREE or name.startswith("_record_function")


@cache
def is_composite(func: Any) -> bool:
    """Return whether an operator is composed of others, without its own meta-device kernel."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "Meta")


@cache
def is_in_place(func: Any) -> bool:
    """Return whether all outputs of an operator are its first argument, written in place."""
    first, returns = func._schema.arguments[0].alias_info, func._schema.returns
    if len(returns) != 1 or first is None or not first.is_write:
        return False
    returned = returns[0].alias_info
    return returned is not None and returned.after_set == first.after_set
