"""Fused inference graph of the interference predictor; ``fused_solo`` has the solo predictors.

Linear layers with the same input become one matrix. Linear paths pass every activation as two
units, down to the demand that a victim feels. The names of buffers are names in the ONNX file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.interference_mlp import MAX_LOG_DEMAND, MIN_LOG_DEMAND, InterferenceMLP
from presage.models.networks.predictors import InterferencePredictor
from presage.models.networks.stacked import StackedLinear
from presage.models.onnx_export.fused_columns import ColumnIndex, make_truth_layer
from presage.models.onnx_export.fused_levels import MIDDLE, OUTER, FusedLevels, gap_from_steps
from presage.models.onnx_export.fused_network import UNIT
from presage.models.training.fit import LEVELS


class FusedInterference(nn.Module):
    """:class:`InterferencePredictor` with fewer operators and equal results up to rounding."""

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
        self.levels = FusedLevels(predictor.members, predictor.calibrate, raw=False)
        boxes = ColumnIndex()
        truth_weight, truth_bias = make_truth_layer(self.levels.devices, boxes)
        buffers = {
            **_make_layers(net),
            "mean": _merge_equal_members(standardize.mean),
            "scale": _merge_equal_members(standardize.scale),
            "outward": gap_from_steps(),
            "level_weight": _make_level_weight(self.levels).T,
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
        """Return slowdowns (C, K, levels) of members (C, K, columns) and mask (C, K)."""
        places, size, columns = members.shape
        flat = members.reshape(-1, columns)
        median, steps = self._median_and_steps(flat, mask, places, size)
        down, up = torch.split(torch.matmul(steps, self.outward), [MIDDLE, MIDDLE], -1)
        quantiles = torch.cat([median, median * torch.exp(-down), up], -1)  # (M, C, K, Q)
        inputs = quantiles.permute(0, 3, 1, 2).reshape(len(self.level_weight.T), -1)
        inputs = torch.addmm(self.level_bias, self.level_weight, inputs)
        log_slowdown = self.levels(inputs, self._device_truths(flat)).clamp_min(0.0)
        # The slowdown of a job without co-runners is 1 by definition.
        is_shared = mask * (mask.sum(-1, keepdim=True) > 1.5).to(mask.dtype)
        slowdown = torch.exp(log_slowdown * is_shared.reshape(1, -1))
        return slowdown.T.reshape(places, size, len(LEVELS))

    def _median_and_steps(
        self, flat: Tensor, mask: Tensor, places: int, size: int
    ) -> tuple[Tensor, Tensor]:
        """Return log medians (M, C, K, 1) and steps between quantiles (M, C, K, Q - 1)."""
        inputs = ((flat - self.mean) / self.scale).clamp(-self.limit, self.limit)
        hidden = F.silu(torch.matmul(inputs, self.member) + self.member_bias)
        width = self.pair.shape[-1]
        roles = torch.matmul(hidden, self.roles)
        roles = roles.reshape(len(roles), places, size, roles.shape[-1])
        own, sharp, victim, runner = torch.split(roles, [1, 1, width, width], -1)
        both = F.silu(victim[:, :, :, None] + runner[:, :, None]).reshape(len(roles), -1, width)
        pairs = torch.matmul(F.silu(torch.matmul(both, self.pair)), self.effect)
        felt, steps = torch.split(
            pairs.reshape(len(roles), places, size, size, 1 + len(OUTER)), [1, len(OUTER)], -1
        )
        co_runners = (mask[:, None] - torch.eye(size, dtype=mask.dtype)).clamp_min(0)  # (C, K, K)
        demand = felt.clamp(MIN_LOG_DEMAND, MAX_LOG_DEMAND).exp() * co_runners[..., None]
        log_solo = own.clamp(MIN_LOG_DEMAND, MAX_LOG_DEMAND)
        total = log_solo.exp() + demand.sum(3)  # (M, C, K, 1)
        sharpness = 1 + F.softplus(sharp)
        waiting = F.softplus(sharpness * total.log()) - F.softplus(sharpness * log_solo)
        median = waiting.relu() / sharpness
        return median, F.softplus((demand * steps).sum(3) / total + self.spread_bias)

    def _device_truths(self, flat: Tensor) -> Tensor | None:
        """Return 1 where a member is on a device with margins of its own, (devices, members)."""
        if not len(self.positions):
            return None
        raw = flat.T.index_select(0, self.positions)
        clamped = torch.minimum(torch.maximum(raw, self.low), self.high)
        inside = (clamped == raw).to(flat.dtype)
        return torch.addmm(self.truth_bias, self.truth_weight, inside).relu()


def _merge_equal_members(values: Tensor) -> Tensor:
    """Return the value of the first member if all members (members, ...) have the same."""
    first = values[:1]
    return first if torch.equal(values, first.expand_as(values)) else values


def _make_level_weight(levels: FusedLevels) -> Tensor:
    """Return the weight (members x 5, outputs) of the members' quantiles.

    The inputs are the median, the shrunk medians below it and the steps above it. The gap below the
    median is the difference between the median and a shrunk median.
    """
    weight = torch.cat([levels.median_weight[:, None], levels.gap_weight], 1)
    below = weight[:, 1 : 1 + MIDDLE].sum(1)
    weight[:, 0] += below
    weight[:, 1 : 1 + MIDDLE] *= -1
    return weight.flatten(0, 1)


def _make_layers(net: InterferenceMLP) -> dict[str, Tensor]:
    """Return the matrices between activations.

    Units are the hidden ones, then a constant 1, then two for each linear path.
    """
    members, hidden = net.own.weight.shape[:2]
    lines = [net.own_line, net.victim_line, net.runner_line]
    line = torch.cat([layer.weight for layer in lines], -1)
    line_bias = torch.cat([layer.bias for layer in lines], -1)
    wide, narrow = hidden + 1 + 2 * len(lines), hidden + 3  # units with three linear paths, one
    own = _extend_layer(net.own, wide) + _line_units(members, hidden, wide, 0)
    victim = _line_units(members, hidden, wide, 1)
    runner = own + _line_units(members, hidden, wide, 2)
    felt = _line_units(members, hidden, narrow, 0)
    spread_bias = net.spread.bias[..., OUTER]  # added once, not for every co-runner
    return {
        "member": _widen(net.member.weight, 0.0, line),
        "member_bias": _widen(net.member.bias, UNIT, line_bias),
        "roles": torch.cat(
            [
                own, _extend_layer(net.sharpness, wide),
                _extend_layer(net.as_victim, wide), _constant_unit(members, hidden, wide, UNIT),
                victim, -victim,
                _extend_layer(net.as_runner, wide), _constant_unit(members, hidden, wide, 0.0),
                runner, -runner,
            ],
            -1,
        ),
        "pair": torch.cat(
            [
                _extend_layer(net.pair, narrow), _constant_unit(members, hidden, narrow, UNIT),
                felt, -felt,
            ],
            -1,
        ),
        "effect": torch.cat(
            [
                _extend_layer(net.felt, narrow) + felt,
                _extend_layer(net.spread, narrow)[..., OUTER]
                - _constant_unit(members, hidden, narrow, 1.0) * spread_bias,
            ],
            -1,
        ),
        "spread_bias": spread_bias[:, :, None],
    }  # fmt: skip


def _widen(hidden: Tensor, constant: float, lines: Tensor) -> Tensor:
    """Append columns for the constant unit and for two units per linear path."""
    unit = torch.full((*hidden.shape[:-1], 1), constant)
    return torch.cat([hidden, unit, lines, -lines], -1)


def _extend_layer(layer: StackedLinear, width: int) -> Tensor:
    """Return a layer of the hidden units as one of all ``width`` units, (members, width, n_out)."""
    members, hidden, n_out = layer.weight.shape
    rest = torch.zeros(members, width - hidden - 1, n_out)
    return torch.cat([layer.weight, layer.bias, rest], 1)


def _constant_unit(members: int, hidden: int, width: int, value: float) -> Tensor:
    """Return a layer (members, width, 1) whose output is ``value`` times the constant unit."""
    out = torch.zeros(members, width, 1)
    out[:, hidden] = value
    return out


def _line_units(members: int, hidden: int, width: int, which: int) -> Tensor:
    """Return a layer (members, width, 1) that restores a linear path from its two units."""
    out = torch.zeros(members, width, 1)
    out[:, hidden + 1 + which], out[:, width - (width - hidden - 1) // 2 + which] = 1.0, -1.0
    return out
