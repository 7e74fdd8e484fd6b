"""Fused inference graph of the interference predictor; ``fused_solo`` has the solo predictors.

Linear layers of one input are one matrix, and straight lines take the way of two units past every
bend, down to the demand that a victim feels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.interference_mlp import LEAST, MOST, InterferenceMLP
from presage.models.networks.predictors import InterferencePredictor
from presage.models.networks.stacked import StackedLinear
from presage.models.onnx_export.fused_columns import Columns, truth
from presage.models.onnx_export.fused_levels import MIDDLE, OUTER, FoldedLevels, outward
from presage.models.onnx_export.fused_network import UNIT
from presage.models.training.fit import LEVELS


class FoldedInterference(nn.Module):
    """Members (C, K, columns) and mask (C, K) -> what an :class:`InterferencePredictor` says."""

    mean: Tensor
    scale: Tensor
    member: Tensor
    member_bias: Tensor
    roles: Tensor
    pair: Tensor
    effect: Tensor
    spread_bias: Tensor
    outward: Tensor
    level_weight: Tensor
    level_bias: Tensor
    positions: Tensor
    low: Tensor
    high: Tensor
    truth_weight: Tensor
    truth_bias: Tensor

    def __init__(self, predictor: InterferencePredictor) -> None:
        super().__init__()
        net, standardize = predictor.stack.net, predictor.stack.standardize
        self.limit = standardize.LIMIT
        self.levels = FoldedLevels(predictor.members, predictor.calibrate, raw=False)
        boxes = Columns()
        truth_weight, truth_bias = truth(self.levels.devices, boxes)
        buffers = {
            **_layers(net),
            "mean": _once(standardize.mean),
            "scale": _once(standardize.scale),
            "outward": outward(),
            "level_weight": _level_weight(self.levels).T,
            "level_bias": self.levels.shift[:, None],
            "low": torch.tensor([[box.low] for box in boxes]),
            "high": torch.tensor([[box.high] for box in boxes]),
            "truth_weight": truth_weight.T,
            "truth_bias": truth_bias[:, None],
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().float().contiguous())
        self.register_buffer("positions", torch.tensor([box.position for box in boxes]))

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """(C, K, columns) and (C, K) -> (C, K, levels)."""
        places, size, columns = members.shape
        flat = members.reshape(-1, columns)
        seen = ((flat - self.mean) / self.scale).clamp(-self.limit, self.limit)
        hidden = F.silu(torch.matmul(seen, self.member) + self.member_bias)
        width = self.pair.shape[-1]
        roles = torch.matmul(hidden, self.roles)
        roles = roles.reshape(len(roles), places, size, roles.shape[-1])
        own, sharp, victim, runner = torch.split(roles, [1, 1, width, width], -1)
        met = F.silu(victim[:, :, :, None] + runner[:, :, None]).reshape(len(roles), -1, width)
        pairs = torch.matmul(F.silu(torch.matmul(met, self.pair)), self.effect)
        felt, steps = torch.split(
            pairs.reshape(len(roles), places, size, size, 1 + len(OUTER)), [1, len(OUTER)], -1
        )
        beside = (mask[:, None] - torch.eye(size, dtype=mask.dtype)).clamp_min(0)  # (C, K, K)
        demand = felt.clamp(LEAST, MOST).exp() * beside[..., None]
        log_alone = own.clamp(LEAST, MOST)
        total = log_alone.exp() + demand.sum(3)  # (M, C, K, 1)
        sharpness = 1 + F.softplus(sharp)
        waiting = F.softplus(sharpness * total.log()) - F.softplus(sharpness * log_alone)
        median = waiting.relu() / sharpness
        steps = F.softplus((demand * steps).sum(3) / total + self.spread_bias)
        down, up = torch.split(torch.matmul(steps, self.outward), [MIDDLE, MIDDLE], -1)
        of_members = torch.cat([median, median * torch.exp(-down), up], -1)
        asked = of_members.permute(0, 3, 1, 2).reshape(len(self.level_weight.T), -1)
        asked = torch.addmm(self.level_bias, self.level_weight, asked)
        log_slowdown = self.levels(asked, self._own(flat)).clamp_min(0.0)
        # A job without co-runners is not slowed down, whatever a network says.
        shared = mask * (mask.sum(-1, keepdim=True) > 1.5).to(mask.dtype)
        slowdown = torch.exp(log_slowdown * shared.reshape(1, -1))
        return slowdown.T.reshape(places, size, len(LEVELS))

    def _own(self, flat: Tensor) -> Tensor | None:
        """Which of the devices with margins of their own members are on, (devices, members)."""
        if not len(self.positions):
            return None
        raw = flat.T.index_select(0, self.positions)
        held = torch.minimum(torch.maximum(raw, self.low), self.high)
        inside = (held == raw).to(flat.dtype)
        return torch.addmm(self.truth_bias, self.truth_weight, inside).relu()


def _once(of_members: Tensor) -> Tensor:
    """One of all members where theirs are equal."""
    first = of_members[:1]
    return first if torch.equal(of_members, first.expand_as(of_members)) else of_members


def _level_weight(levels: FoldedLevels) -> Tensor:
    """Of each member's median, shrunk medians below it and steps above: (members x 5, outputs).

    A gap below is what the median is shrunk by.
    """
    weight = torch.cat([levels.of_median[:, None], levels.of_gaps], 1)
    below = weight[:, 1 : 1 + MIDDLE].sum(1)
    weight[:, 0] += below
    weight[:, 1 : 1 + MIDDLE] *= -1
    return weight.flatten(0, 1)


def _layers(net: InterferenceMLP) -> dict[str, Tensor]:
    """Matrices between bends; after the hidden units comes one that is 1, then lines."""
    members, hidden = net.own.weight.shape[:2]
    lines = [net.own_line, net.victim_line, net.runner_line]
    line = torch.cat([each.weight for each in lines], -1)
    line_bias = torch.cat([each.bias for each in lines], -1)
    unit = torch.full((members, 1, 1), UNIT)
    nothing = torch.zeros(members, net.member.weight.shape[1], 1)
    after = hidden + 1 + 2 * len(lines)

    def of(layer: StackedLinear, width: int) -> Tensor:
        """A layer of the hidden units, given all units of the one before."""
        rest = torch.zeros(members, width - hidden - 1, layer.weight.shape[2])
        return torch.cat([layer.weight, layer.bias, rest], 1)

    def constant(width: int, value: float) -> Tensor:
        out = torch.zeros(members, width, 1)
        out[:, hidden] = value
        return out

    def through(width: int, which: int) -> Tensor:
        """A straight line, by its two units."""
        out = torch.zeros(members, width, 1)
        out[:, hidden + 1 + which], out[:, width - (width - hidden - 1) // 2 + which] = 1.0, -1.0
        return out

    own = of(net.own, after) + through(after, 0)
    victim, runner = through(after, 1), own + through(after, 2)
    narrow = hidden + 3
    felt = through(narrow, 0)
    spread_bias = net.spread.bias[..., OUTER]  # is added once, not for every co-runner
    return {
        "member": torch.cat([net.member.weight, nothing, line, -line], -1),
        "member_bias": torch.cat([net.member.bias, unit, line_bias, -line_bias], -1),
        "roles": torch.cat(
            [
                own, of(net.sharpness, after),
                of(net.as_victim, after), constant(after, UNIT), victim, -victim,
                of(net.as_runner, after), constant(after, 0.0), runner, -runner,
            ],
            -1,
        ),
        "pair": torch.cat([of(net.pair, narrow), constant(narrow, UNIT), felt, -felt], -1),
        "effect": torch.cat(
            [
                of(net.felt, narrow) + felt,
                of(net.spread, narrow)[..., OUTER] - constant(narrow, 1.0) * spread_bias,
            ],
            -1,
        ),
        "spread_bias": spread_bias[:, :, None],
    }  # fmt: skip
