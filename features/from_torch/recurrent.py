"""Recurrent layer as one operator, forward and backward, like in cuDNN and oneDNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("presage", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "recurrent(Tensor data, Tensor[] state, Tensor[] weights, int kept)"
    " -> (Tensor, Tensor[], Tensor)"
)
_LIBRARY.define(
    "recurrent_backward(Tensor?[] gradients, Tensor data, Tensor out, Tensor reserve,"
    " Tensor[] state, Tensor[] weights) -> Tensor[]"
)


def recurrent_stack(
    data: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    gates: int,
) -> tuple[Tensor, ...] | None:
    """Compute ``aten::lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu`` with an operator per layer.

    Parameters
    ----------
    data : Tensor of shape (T, B, input), or (B, T, input) with ``batch_first``
    state : Tensor, or the two of an LSTM, of shape (layers * directions, B, hidden)
    gates : int
        Rows of a weight matrix per hidden unit: 4 of an LSTM, 3 of a GRU, else 1.

    Returns
    -------
    tuple of Tensor or None
        None for unsupported stacks, which torch then decomposes (an LSTM with projections).
    """
    directions = 2 if bidirectional else 1
    states = [state] if isinstance(state, Tensor) else list(state)
    per_layer = directions * (4 if has_biases else 2)
    if len(weights) != layers * per_layer or data.ndim != 3:
        return None
    sequence = data.transpose(0, 1) if batch_first else data
    # For the backward pass cuDNN saves every gate, and an LSTM's cells, of every step.
    kept = gates + len(states) - 1 if torch.is_grad_enabled() else 0
    last: list[list[Tensor]] = []
    for layer in range(layers):
        if layer and dropout and training:
            sequence = torch.dropout(sequence, dropout, True)
        own = weights[layer * per_layer : (layer + 1) * per_layer]
        first = [s[layer * directions : (layer + 1) * directions] for s in states]
        sequence, *finals = _Layer.apply(kept, sequence, len(first), *first, *own)  # type: ignore[no-untyped-call]
        last.append(finals)
    ends = [torch.cat(parts) if layers > 1 else parts[0] for parts in zip(*last, strict=True)]
    return sequence.transpose(0, 1) if batch_first else sequence, *ends


class _Layer(torch.autograd.Function):
    """One layer, with all directions and time steps."""

    @staticmethod
    def forward(ctx: Any, kept: int, data: Tensor, states: int, *tensors: Tensor) -> Any:
        state, weights = tensors[:states], tensors[states:]
        out, finals, reserve = torch.ops.presage.recurrent(data, state, weights, kept)
        ctx.save_for_backward(data, out, reserve, *tensors)
        ctx.states = states
        ctx.set_materialize_grads(False)
        return out, *finals

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        data, out, reserve, *tensors = ctx.saved_tensors
        state, weights = tensors[: ctx.states], tensors[ctx.states :]
        found = torch.ops.presage.recurrent_backward(gradients, data, out, reserve, state, weights)
        return None, found[0], None, *found[1:]


def _recurrent(
    data: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], kept: int
) -> tuple[Tensor, list[Tensor], Tensor]:
    directions, batch, hidden = state[0].shape
    length = data.shape[0]
    out = data.new_empty(length, batch, directions * hidden)
    return out, [torch.empty_like(s) for s in state], data.new_empty(kept, *out.shape)


def _recurrent_backward(
    gradients: Sequence[Tensor | None],
    data: Tensor,
    out: Tensor,
    reserve: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (data, *state, *weights)]


_LIBRARY.impl("recurrent", _recurrent, "Meta")
_LIBRARY.impl("recurrent_backward", _recurrent_backward, "Meta")


def recurrent_flops(name: str, data: Tensor, weights: Sequence[Tensor]) -> int:
    """Return the FLOPs of a layer's products; backward twice as many, with or without data grad.

    Every time step multiplies every sample by both matrices of its direction.
    """
    elements = sum(math.prod(w.shape) for w in weights if w.ndim == 2)
    forward = 2 * data.shape[0] * data.shape[1] * elements
    return 2 * forward if name.endswith("_backward") else forward
