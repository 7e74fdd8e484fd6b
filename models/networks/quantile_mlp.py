"""Quantile MLP of compute utilization, memory and step time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.stacked import StackedLinear, ordered_quantiles


class QuantileMLP(nn.Module):
    """Stack of multi-layer perceptrons, each with a parallel linear path.

    The linear path fits what is linear, so the hidden layers, which see few rows, only fit the
    deviations from it.
    """

    def __init__(self, members: int, n_in: int, *, hidden: int, levels: tuple[float, ...]) -> None:
        super().__init__()
        self.middle = levels.index(0.5)
        self.first = StackedLinear(members, n_in, hidden)
        self.second = StackedLinear(members, hidden, hidden)
        self.head = StackedLinear(members, hidden, len(levels))
        self.linear = StackedLinear(members, n_in, 1)
        with torch.no_grad():
            self.linear.weight.zero_()

    def forward(self, x: Tensor, effect: Tensor) -> Tensor:
        """Return quantiles (members, rows, levels).

        Parameters
        ----------
        x : Tensor of shape (members, rows, columns)
        effect : Tensor of shape (members, rows, hidden + 1)
            Added before the first activation; its last column is added to the linear path.
        """
        hidden = F.silu(self.first(x) + effect[..., :-1])
        raw = self.head(F.silu(self.second(hidden)))  # (M, B, Q)
        quantiles = ordered_quantiles(raw, self.middle)
        out: Tensor = quantiles + self.linear(x) + effect[..., -1:]
        return out
