"""What an operator of torch does by its schema: computes, allocates, or only looks."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

# Allocate without writing, or read one number. What makes a view says so in its schema.
_FREE = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided detach _local_scalar_dense "
    "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk _reshape_alias "
    "as_strided_ resize_".split()
)


@cache
def is_view(func: Any) -> bool:
    """Whether all that an operator returns is memory of its inputs, unchanged."""
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@cache
def is_free(func: Any) -> bool:
    """Whether an operator moves no byte of a tensor's content."""
    name = func.overloadpacket.__name__
    return is_view(func) or name in _FREE or name.startswith("_record_function")


@cache
def is_composite(func: Any) -> bool:
    """Whether an operator is made of others and has no kernel of its own on the meta device."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "Meta")


@cache
def is_in_place(func: Any) -> bool:
    """Whether all that an operator returns is its first argument, written to."""
    first, returns = func._schema.arguments[0].alias_info, func._schema.returns
    if len(returns) != 1 or first is None or not first.is_write:
        return False
    returned = returns[0].alias_info
    return returned is not None and returned.after_set == first.after_set
