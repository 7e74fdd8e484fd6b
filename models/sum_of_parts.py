"""The network behind step time and memory: a forecast is a sum over parts, each with a factor.

Every part of a step (an operator kind's share of the time, a holder of bytes) has a base that
first principles give. A network that all parts share learns by which factor it is off, from the
part itself, from what all parts of the job have in common, and from the mean of the others: a set
network (Zaheer et al., Deep Sets, 2017) whose sum is physics. A model that nobody measured is made
of parts that somebody did.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.stacked import StackedLinear

# e^-9 and e^5: a factor beyond is no factor any more.
LEAST, MOST = -9.0, 5.0


class SumOfParts(nn.Module):
    """``members`` networks side by side: parts in, quantiles of the logarithm of their sum out.

    Parameters
    ----------
    units : int
        How many kinds of parts there are.
    n_features, n_context : int
        Columns of a part, and of a whole row.
    levels : tuple of float
        Quantiles; the middle one is the logarithm of the sum.
    against : int
        So many of the last units are summed apart, and the sum of all others is divided by
        theirs: time that keeps a device busy by time that does not. 0 for a sum alone.
    """

    def __init__(
        self,
        members: int,
        units: int,
        n_features: int,
        n_context: int,
        *,
        hidden: int,
        levels: tuple[float, ...],
        against: int = 0,
    ) -> None:
        super().__init__()
        self.first_against = units - against if against else None
        self.middle = levels.index(0.5)
        self.unit = nn.Parameter(0.3 * torch.randn(members, units, hidden))
        # How a unit answers to the context: what a memory layout does depends on the operator.
        self.unit_context_weight = nn.Parameter(
            0.05 * torch.randn(members, units, n_context, hidden)
        )
        self.part = StackedLinear(members, n_features, hidden)
        self.context = StackedLinear(members, n_context, hidden)
        self.body = StackedLinear(members, hidden, hidden)
        self.others = StackedLinear(members, hidden, hidden)
        self.factor = StackedLinear(members, hidden, 1)
        self.unit_factor = nn.Parameter(torch.zeros(members, units))
        self.unit_context_factor_weight = nn.Parameter(torch.zeros(members, units, n_context))
        self.spread = StackedLinear(members, hidden, len(levels))
        with torch.no_grad():
            self.factor.weight.zero_()
            self.spread.weight.zero_()
            self.spread.bias.fill_(-2.0)

    def forward(self, units: Tensor, base: Tensor, parts: Tensor, context: Tensor) -> Tensor:
        """Units and bases (rows, parts), parts (M, rows, parts, F), context (M, rows, C).

        Returns quantiles of shape (members, rows, levels).
        """
        members, rows, count, _ = parts.shape
        hidden = self.unit.shape[-1]
        by_unit = torch.einsum("mrc,much->mruh", context, self.unit_context_weight)
        by_unit = by_unit + self.unit[:, None] + self.context(context)[:, :, None]
        where = units[None, :, :, None].expand(members, rows, count, hidden)
        flat = self.part(parts.reshape(members, rows * count, -1))
        seen = F.silu(flat.reshape(members, rows, count, hidden) + by_unit.gather(2, where))
        share = base / base.sum(-1, keepdim=True)
        mean = (seen * share[None, :, :, None]).sum(2)  # (M, R, H)
        body = self.body(seen.reshape(members, rows * count, hidden))
        body = F.silu(body.reshape(members, rows, count, hidden) + self.others(mean)[:, :, None])
        factor = self.factor(body.reshape(members, rows * count, hidden))
        by_unit_factor: Tensor = self.unit_factor[:, None] + torch.einsum(
            "mrc,muc->mru", context, self.unit_context_factor_weight
        )
        logs = factor.reshape(members, rows, count) + by_unit_factor.gather(2, where[..., 0])
        return self._quantiles(self.total(units, base, logs), self.spread(mean))

    def total(self, units: Tensor, base: Tensor, logs: Tensor) -> Tensor:
        """Logarithm of the sum, or of the ratio of the two sums; ``logs`` are those of factors."""
        grown = base * logs.clamp(LEAST, MOST).exp()
        if self.first_against is None:
            return grown.sum(-1).log()
        apart = (units >= self.first_against).to(base.dtype)
        return (grown * (1 - apart)).sum(-1).log() - (grown * apart).sum(-1).log()

    def _quantiles(self, median: Tensor, raw: Tensor) -> Tensor:
        """Steps away from the median, whose own fit they may not bend."""
        steps = F.softplus(raw)
        down = torch.flip(torch.cumsum(torch.flip(steps[..., : self.middle], [-1]), -1), [-1])
        up = torch.cumsum(steps[..., self.middle + 1 :], -1)
        held = median.detach()[..., None]
        return torch.cat([held - down, median[..., None], held + up], dim=-1)

    def start_at(self, offset: Tensor) -> None:
        """Begin with the factor e^offset, shape (members,), on every part that is not apart."""
        with torch.no_grad():
            self.unit_factor[:, : self.first_against] = offset[:, None].clamp(-4, 4)
