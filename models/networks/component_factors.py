"""Component factors: a learned factor for every component of a prior.

A prior (a step time, a memory peak) is a sum of components, and so are its errors. A kernel class
that reaches a third of the device's peak takes three times its share of the step, whatever the
other components are. A network on logarithms of shares would have to learn this for every mixture;
a sum of shares times factors also holds for mixtures that were never measured (decision 14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from presage.features.columns.schema import FEATURE_SETS, columns

# Columns that a factor depends on; elsewhere they are 0.
CONDITIONS = tuple(
    columns("full").index(name) for name in ("channels_last", "half_precision", "tf32", "fp64")
)
# Change of a log factor per unit of a weight: kernels are off by several times.
LOG_FACTOR_SCALE = 5.0
# A condition makes a component at most twice as fast or slow. The effect of half precision on a
# softmax is learned from a handful of jobs; without the limit, a factor of e^4 would decide the
# forecast on an unseen device.
CONDITION_LIMIT = math.log(2)
MIN_SUM = 1e-4  # of the prior


class ComponentFactors(nn.Module):
    """Tables of factors, one per stack member: for each component, each condition and the rest.

    The names of parameters and buffers are keys of the networks' files.

    Parameters
    ----------
    members : int
        Members of the stack.
    parts : sequence of int
        Positions of columns of the full set with a :attr:`FeatureColumn.prior_weight`. The rest is
        1 minus the shares of the columns whose weight is 1.
    """

    positions: Tensor
    offsets: Tensor
    is_whole: Tensor
    begin: Tensor

    def __init__(self, members: int, parts: Sequence[int]) -> None:
        super().__init__()
        used = [FEATURE_SETS["full"][i] for i in parts]
        weights = [column.prior_weight for column in used if column.prior_weight is not None]
        self.register_buffer("positions", torch.tensor(parts))
        self.register_buffer("offsets", torch.tensor([c.log_offset or 0.0 for c in used]))
        self.register_buffer("is_whole", torch.tensor([float(w == 1.0) for w in weights]))
        self.register_buffer("begin", torch.tensor([*map(math.log, weights), 0.0]))
        self.factor_weight = nn.Parameter(torch.zeros(members, 1, len(weights) + 1))
        self.condition_weight = nn.Parameter(
            torch.zeros(members, len(CONDITIONS), len(weights) + 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return log sums (members, rows, 1) for transformed features (rows, columns)."""
        shares = (x[:, self.positions].exp() - self.offsets).clamp_min(0)
        rest = (1 - (shares * self.is_whole).sum(-1, keepdim=True)).clamp_min(0)
        conditions = (x[:, CONDITIONS] > 0).to(x.dtype)
        change = LOG_FACTOR_SCALE * (conditions @ self.condition_weight)
        change = CONDITION_LIMIT * torch.tanh(change / CONDITION_LIMIT)
        factors = torch.exp(self.begin + LOG_FACTOR_SCALE * self.factor_weight + change)
        components = torch.cat([shares, rest], -1) * factors
        return components.sum(-1, keepdim=True).clamp_min(MIN_SUM).log()
