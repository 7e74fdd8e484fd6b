"""Stacked networks: several networks trained at once, with one matrix product for all of them.

A fold, a seed or an ensemble member is one slice of every weight tensor. On one core thirty small
networks cost little more than one, so cross-validation is about as cheap as a single fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Stack = TypeVar("Stack", bound=nn.Module)

_PER_MEMBER_BUFFERS = ("mean", "scale", "y_mean", "y_scale")


class StackedLinear(nn.Module):
    """``members`` linear layers; maps (members, rows, n_in) to (members, rows, n_out)."""

    def __init__(self, members: int, n_in: int, n_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(members, n_in, n_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (members, rows, n_in) to (members, rows, n_out)."""
        return torch.baddbmm(self.bias, x, self.weight)


def ordered_quantiles(raw: Tensor, middle: int) -> Tensor:
    """Return quantiles (..., Q) that cannot cross: the median and positive steps from it."""
    median = raw[..., middle : middle + 1]
    steps = F.softplus(raw)
    down = torch.flip(torch.cumsum(torch.flip(steps[..., :middle], [-1]), -1), [-1])
    up = torch.cumsum(steps[..., middle + 1 :], -1)
    return torch.cat([median - down, median, median + up], dim=-1)


def pinball_loss(quantiles: Tensor, y: Tensor, levels: Tensor) -> Tensor:
    """Return the pinball loss per row, shape (...), of quantiles (..., Q) against y (...)."""
    error = y[..., None] - quantiles
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


def take_members(stack: nn.Module, positions: Tensor) -> None:
    """Reduce a stack, in place, to the members at these positions, which may repeat."""
    for module in stack.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach()[positions].clone()))
        for name in _PER_MEMBER_BUFFERS:
            if name in dict(module.named_buffers(recurse=False)):
                setattr(module, name, getattr(module, name)[positions].clone())


def join_members(parts: Sequence[Stack]) -> Stack:
    """Return one stack of the members of several, in order."""
    joined = deepcopy(parts[0])
    others = zip(*(part.modules() for part in parts), strict=True)
    for module, of_part in zip(joined.modules(), others, strict=True):
        for name in dict(module.named_parameters(recurse=False)):
            values = torch.cat([getattr(one, name).detach() for one in of_part])
            setattr(module, name, nn.Parameter(values))
        for name in _PER_MEMBER_BUFFERS:
            if name in dict(module.named_buffers(recurse=False)):
                setattr(module, name, torch.cat([getattr(one, name) for one in of_part]))
    return joined


class Standardizer(nn.Module):
    """Shift and scale by the training rows of each member, (members, 1, columns).

    Parameters
    ----------
    x : iterable of Tensor of shape (rows, columns)
        Rows of each member.
    row_weights : Tensor of shape (members, rows)
    """

    mean: Tensor
    scale: Tensor

    # No training row is further away than this many standard deviations. The linear growth of a
    # network beyond it is arbitrary, so inputs are clamped; `in_domain` reports such rows.
    LIMIT = 4.0

    def __init__(self, x: Iterable[Tensor], row_weights: Tensor) -> None:
        super().__init__()
        # One member at a time: products of all members and rows would not fit in memory.
        found = [
            _mean_and_deviation(of_member, weights)
            for of_member, weights in zip(x, row_weights, strict=True)
        ]
        mean, scale = (torch.stack(values) for values in zip(*found, strict=True))
        self.register_buffer("mean", mean)
        # The deviation of a constant column is rounding error, which grows with its mean.
        constant = scale < 1e-5 * (1 + mean.abs())
        self.register_buffer("scale", torch.where(constant, torch.ones_like(scale), scale))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (members, rows, columns), standardized and clamped to LIMIT."""
        return ((x - self.mean) / self.scale).clamp(-self.LIMIT, self.LIMIT)


def _mean_and_deviation(x: Tensor, row_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean and standard deviation (1, columns) of rows (rows, columns)."""
    weights = (row_weights / row_weights.sum())[:, None]
    mean = (weights * x).sum(0, keepdim=True)
    return mean, (weights * (x - mean) ** 2).sum(0, keepdim=True).sqrt()
