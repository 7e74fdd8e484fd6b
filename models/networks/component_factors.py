"""Parts of a prior, each with a factor of its own: times and bytes add up, and so do their errors.

Kernels that reach a third of a device's peak take three times their share of a step, whatever runs
beside them. A network that bends logarithms of shares has to learn that of every mixture anew; as a
sum of shares times factors it holds for mixtures that nobody measured (decision 14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from presage.features.columns.schema import FEATURE_SETS, columns

# What a factor may depend on; elsewhere these columns are 0.
CONDITIONS = tuple(
    columns("full").index(name) for name in ("channels_last", "half_precision", "tf32", "fp64")
)
# Logarithms of factors move this much for one of a weight: kernels are off by several times.
STRIDE = 5.0
# A condition makes a part twice as fast or slow at most: what half precision does to a softmax is
# learnt from a handful of jobs, and on a device never seen a factor of e^4 would decide.
CONDITION_LIMIT = math.log(2)
LEAST_SUM = 1e-4  # of the prior


class SumOfParts(nn.Module):
    """``members`` tables of factors: of each part, under each condition, and of the rest.

    Parameters
    ----------
    parts : sequence of int
        Positions of columns of the full set with a :attr:`FeatureColumn.prior_weight`. What those
        that the prior counts whole do not add up to is the rest, which is a part too.
    """

    positions: Tensor
    offsets: Tensor
    is_whole: Tensor
    begin: Tensor

    def __init__(self, members: int, parts: Sequence[int]) -> None:
        super().__init__()
        known = [FEATURE_SETS["full"][i] for i in parts]
        begin = [column.prior_weight for column in known if column.prior_weight is not None]
        self.register_buffer("positions", torch.tensor(parts))
        self.register_buffer("offsets", torch.tensor([c.log_offset or 0.0 for c in known]))
        self.register_buffer("is_whole", torch.tensor([float(part == 1.0) for part in begin]))
        self.register_buffer("begin", torch.tensor([*map(math.log, begin), 0.0]))
        self.factor_weight = nn.Parameter(torch.zeros(members, 1, len(begin) + 1))
        self.condition_weight = nn.Parameter(torch.zeros(members, len(CONDITIONS), len(begin) + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Transformed features (rows, columns) -> logarithms of sums (members, rows, 1)."""
        shares = (x[:, self.positions].exp() - self.offsets).clamp_min(0)
        rest = (1 - (shares * self.is_whole).sum(-1, keepdim=True)).clamp_min(0)
        under = (x[:, CONDITIONS] > 0).to(x.dtype)
        change = STRIDE * (under @ self.condition_weight)
        change = CONDITION_LIMIT * torch.tanh(change / CONDITION_LIMIT)
        factors = torch.exp(self.begin + STRIDE * self.factor_weight + change)
        of_parts = torch.cat([shares, rest], -1) * factors
        return of_parts.sum(-1, keepdim=True).clamp_min(LEAST_SUM).log()
