"""The network behind utilization, memory and step time: features in, quantiles out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.stacked import StackedLinear, rising


class QuantileMLP(nn.Module):
    """``members`` multi-layer perceptrons with a linear path beside them.

    The linear path carries what a straight line can say, so that the hidden layers, which see
    few rows, need only bend it.
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
        """(members, rows, columns) and effect (members, rows, hidden + 1) -> (M, rows, levels).

        The effect is added before the first bend, and its last column to the linear path.
        """
        seen = F.silu(self.first(x) + effect[..., :-1])
        quantiles = rising(self.head(F.silu(self.second(seen))), self.middle)  # (M, B, Q)
        out: Tensor = quantiles + self.linear(x) + effect[..., -1:]
        return out
