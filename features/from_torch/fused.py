"""Attention and recurrent layers as single operators, as on real devices.

On the meta device torch decomposes attention into products, with scores of length x length in
between, and a recurrent layer into products of every time step. GPUs run fused kernels for both.
:func:`fused_kernels` intercepts the composite operators before torch decomposes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from presage.features.from_torch.intercept import Interception
from presage.features.from_torch.recurrent import recurrent_stack

aten = torch.ops.aten
# Graphcore's key: stock torch has no kernel for it, and the plugin that had one is retired.
_INTERCEPTION = Interception("AutocastIPU")


@contextmanager
def fused_kernels() -> Iterator[None]:
    """Make attention and recurrent layers on the meta device single operators in this block."""
    with _INTERCEPTION.enabled():
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute ``scaled_dot_product_attention`` with the kernels that CUDA has for it.

    The kernel is flash attention; with a mask, or values of another width than keys, it is the
    memory-efficient kernel. Neither stores scores. A causal mask does not reduce the count, as in
    torch's own count: kernels differ in how much of the triangle they skip.
    """
    if enable_gqa and attn_mask is not None:  # flash takes no mask, the efficient kernel no groups
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
        enable_gqa = False
    kept = -3 if enable_gqa else -2  # dimensions before this one may be broadcast
    shapes = [t.shape[:kept] for t in (query, key, value)]
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    result_shape = (*batch, *query.shape[kept:-1], value.shape[-1])
    query, key, value = (_four_dimensional(t, batch, kept) for t in (query, key, value))
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if attn_mask is None and value.shape[-1] == key.shape[-1]:
        out = aten._scaled_dot_product_flash_attention(query, key, value, **options)[0]
    else:
        scores = (*query.shape[:-1], key.shape[-2])
        bias = None if attn_mask is None else _four_dimensional(
            attn_mask.expand(*batch, *scores[-2:]), batch, kept
        )  # fmt: skip
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, torch.is_grad_enabled(), **options
        )[0]
    return out if len(result_shape) == 4 else out.reshape(result_shape)


def _four_dimensional(tensor: Tensor, batch: torch.Size, kept: int) -> Tensor:
    """Reshape to (batch, heads, length, width)."""
    shape = (*batch, *tensor.shape[kept:])
    if tensor.shape != shape:
        tensor = tensor.expand(shape)
    if len(shape) < 4:
        return tensor[(None,) * (4 - len(shape))]
    return tensor if len(shape) == 4 else tensor.flatten(0, -4)


def _is_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernels support it; torch reports the error if it is invalid."""
    tensors = (query, key, value)
    return (
        all(t.is_meta and t.ndim >= 2 and not t.is_nested for t in tensors)
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
    )


def _catch_attention(op: Any) -> None:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        replace = _attention if _is_attention(*args[:3]) else op
        return replace(*args, **kwargs)

    _INTERCEPTION.catch(op, replacement)


def _catch_recurrent(op: Any, *, gates: int) -> None:
    stack: Callable[..., Any] = partial(recurrent_stack, gates=gates)

    def replacement(data: Tensor, state: Any, weights: list[Tensor], *options: Any) -> Any:
        found = stack(data, state, weights, *options) if data.is_meta else None
        return op(data, state, weights, *options) if found is None else found

    _INTERCEPTION.catch(op, replacement)


_catch_attention(aten.scaled_dot_product_attention.default)
_catch_recurrent(aten.lstm.input, gates=4)
_catch_recurrent(aten.gru.input, gates=3)
_catch_recurrent(aten.rnn_tanh.input, gates=1)
_catch_recurrent(aten.rnn_relu.input, gates=1)
