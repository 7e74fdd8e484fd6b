"""The interference network: a co-location of any size in, every member's slowdown out.

Each member is the victim once, of the sum of its co-runners: sums know no order, so permuting
the members permutes the answer (requirements B1, B2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.stacked import StackedLinear


class InterferenceMLP(nn.Module):
    """``stack`` networks from members (stack, C, K, G) and mask (C, K) to log slowdowns.

    The source document gives the degradation z = sigmoid(a) (requirement B2). With z = 1 - 1/s the
    slowdown is s = 1 + e^a, that is log s = softplus(a): the same output, in the unit of time.
    """

    def __init__(self, stack: int, n_in: int, *, hidden: int, levels: tuple[float, ...]) -> None:
        super().__init__()
        self.middle = levels.index(0.5)
        self.member = StackedLinear(stack, n_in, hidden)
        self.own = StackedLinear(stack, hidden, hidden)
        self.others = StackedLinear(stack, hidden, hidden)
        self.head = StackedLinear(stack, hidden, len(levels))

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """(stack, C, K, G) and (C, K) -> (stack, C, K, levels)."""
        stack, colocations, size, n_in = members.shape
        flat = members.reshape(stack, colocations * size, n_in)
        seen = F.silu(self.member(flat))  # (M, C * K, H)
        seen = seen.reshape(stack, colocations, size, -1) * mask[None, :, :, None]
        others = seen.sum(2, keepdim=True) - seen  # (M, C, K, H)

        def rows(x: Tensor) -> Tensor:
            return x.reshape(stack, colocations * size, -1)

        joint = F.silu(self.own(rows(seen)) + self.others(rows(others)))
        raw = self.head(joint).reshape(stack, colocations, size, -1)  # (M, C, K, Q)
        return _rising_from_zero(raw)


def _rising_from_zero(raw: Tensor) -> Tensor:
    """Log-slowdown quantiles (..., Q): positive and not crossing."""
    return torch.cumsum(F.softplus(raw), -1)
