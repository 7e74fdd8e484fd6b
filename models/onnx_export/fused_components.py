"""Fused component factors: one matrix with the factors of every combination of conditions."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor, nn

from presage.models.networks.component_factors import (
    CONDITION_LIMIT,
    CONDITIONS,
    LOG_FACTOR_SCALE,
    MIN_SUM,
    ComponentFactors,
)
from presage.models.onnx_export.fused_columns import ClampedColumn, Conjunction, is_positive


class FusedComponents(nn.Module):
    """Output of :class:`ComponentFactors` under each combination of the conditions it depends on.

    The names of buffers are names in the ONNX file.

    Attributes
    ----------
    shares : list of ClampedColumn
        Columns to read.
    masks : list of Conjunction
        Condition under which an output counts: by combination, and for each member.
    """

    whole: Tensor
    factors: Tensor
    of_rest: Tensor
    one: Tensor

    def __init__(self, parts: ComponentFactors) -> None:
        super().__init__()
        self.shares = [
            ClampedColumn(position, 0.0, math.inf) for position in parts.positions.tolist()
        ]
        # (members, conditions, components and the rest)
        weight = LOG_FACTOR_SCALE * parts.condition_weight.detach().double()
        used = [i for i in range(len(CONDITIONS)) if weight[:, i].any()]
        boxes = {i: is_positive(CONDITIONS[i]) for i in used}
        always = parts.begin + LOG_FACTOR_SCALE * parts.factor_weight.detach()[:, 0].double()
        self.masks, factors = [], []
        for states in product((False, True), repeat=len(used)):
            active = [i for i, state in zip(used, states, strict=True) if state]
            within = frozenset(boxes[i] for i in active)
            condition = Conjunction(within, frozenset(boxes.values()) - within)
            self.masks += [condition] * len(weight)
            change = CONDITION_LIMIT * torch.tanh(weight[:, active].sum(1) / CONDITION_LIMIT)
            factors.append((always + change).exp())
        table = torch.cat(factors).float()  # (combinations x members, components and the rest)
        self.register_buffer("factors", table[:, :-1].contiguous())
        self.register_buffer("of_rest", table[:, -1:].contiguous())
        self.register_buffer("whole", -parts.is_whole[None])
        self.register_buffer("one", torch.ones(1, 1))

    def forward(self, shares: Tensor) -> Tensor:
        """Return log sums (combinations x members, rows) of shares (components, rows)."""
        rest = torch.addmm(self.one, self.whole, shares).relu()
        sums = torch.addmm(self.factors @ shares, self.of_rest, rest)
        return sums.clamp_min(MIN_SUM).log()
