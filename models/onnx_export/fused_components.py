"""Sums of parts with factors of every combination of conditions, as matrices."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor, nn

from presage.models.networks.component_factors import (
    CONDITION_LIMIT,
    CONDITIONS,
    LEAST_SUM,
    STRIDE,
    SumOfParts,
)
from presage.models.onnx_export.fused_columns import Conjunction, Held, positive


class FoldedParts(nn.Module):
    """What a :class:`SumOfParts` says under each combination of the conditions that it minds.

    Attributes
    ----------
    shares : list of Held
        Columns that it reads.
    masks : list of Conjunction
        Whether an output counts: by combination, and for each member.
    """

    whole: Tensor
    factors: Tensor
    of_rest: Tensor
    one: Tensor

    def __init__(self, parts: SumOfParts) -> None:
        super().__init__()
        self.shares = [Held(position, 0.0, math.inf) for position in parts.positions.tolist()]
        weight = STRIDE * parts.condition_weight.detach().double()  # (members, conditions, parts)
        minded = [i for i in range(len(CONDITIONS)) if weight[:, i].any()]
        boxes = {i: positive(CONDITIONS[i]) for i in minded}
        always = parts.begin + STRIDE * parts.factor_weight.detach()[:, 0].double()
        self.masks, factors = [], []
        for states in product((False, True), repeat=len(minded)):
            met = [i for i, state in zip(minded, states, strict=True) if state]
            within = frozenset(boxes[i] for i in met)
            who = Conjunction(within, frozenset(boxes.values()) - within)
            self.masks += [who] * len(weight)
            change = CONDITION_LIMIT * torch.tanh(weight[:, met].sum(1) / CONDITION_LIMIT)
            factors.append((always + change).exp())
        table = torch.cat(factors).float()  # (combinations x members, parts and the rest)
        self.register_buffer("factors", table[:, :-1].contiguous())
        self.register_buffer("of_rest", table[:, -1:].contiguous())
        self.register_buffer("whole", -parts.is_whole[None])
        self.register_buffer("one", torch.ones(1, 1))

    def forward(self, shares: Tensor) -> Tensor:
        """(parts, rows) -> logarithms of sums (combinations x members, rows)."""
        rest = torch.addmm(self.one, self.whole, shares).relu()
        sums = torch.addmm(self.factors @ shares, self.of_rest, rest)
        return sums.clamp_min(LEAST_SUM).log()
