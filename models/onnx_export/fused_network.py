"""The matrices of a quantile network, with all inside that is a straight line.

Holding a standardized logarithm within limits is holding the raw column within others, so that
standardizing is a part of the first matrix. ``silu(v) - silu(-v) = v`` and
``softplus(v) - softplus(-v) = v``: two units take the network's linear path past a bend. A unit
that is always 1 is the next layer's bias.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.onnx_export.fused_columns import Columns, Held, held
from presage.models.onnx_export.fused_levels import MIDDLE, OUTER, FoldedLevels, outward
from presage.models.training.fit import ScalarStack

UNIT = 1.2784645427610738  # silu of it is 1


class FirstLayer:
    """The columns that a stack reads, and what its first layers make of them.

    Attributes
    ----------
    logs, again, as_is : Columns
        Read as logarithms, as logarithms where images are channels-last, and as they are. The
        first of the last is always 1.
    weight : Tensor of shape (members, inputs, hidden + 3)
        The inputs are these columns, whether images are channels-last, and which of the stack's
        devices it is.
    """

    def __init__(self, stack: ScalarStack) -> None:
        self.logs, self.again, self.as_is = Columns(), Columns(), Columns()
        self.as_is.place(Held(0, 1.0, 1.0))
        mean, scale = (t[:, 0].double() for t in (stack.standardize.mean, stack.standardize.scale))
        positions = [*stack.columns.tolist(), *stack.by_layout.tolist()]
        reach = stack.standardize.LIMIT * scale
        columns = [
            [held(*one) for one in zip(positions, *of, strict=True)]
            for of in zip(mean.tolist(), reach.tolist(), strict=True)
        ]
        own = len(stack.columns)
        groups = [
            self.again if k >= own else self.as_is if math.isnan(one.offset) else self.logs
            for k, one in enumerate(columns[0])
        ]
        places = [
            [group.place(one) for group, one in zip(groups, of, strict=True)] for of in columns
        ]

        constant = len(self.logs) + len(self.again)
        nhwc = constant + len(self.as_is)
        start = {id(self.logs): 0, id(self.again): len(self.logs), id(self.as_is): constant}
        at = torch.tensor(
            [[start[id(g)] + p for g, p in zip(groups, of, strict=True)] for of in places]
        )

        weight = torch.cat([stack.net.first.weight, stack.net.linear.weight], -1).double()
        bias = torch.cat([stack.net.first.bias, stack.net.linear.bias], -1).double()
        effect = stack.device_effect.effect_weight.double()  # (members, devices, hidden + 1)
        is_log = torch.tensor([group is not self.as_is for group in groups])
        zero = torch.where(is_log, 0.0, -mean / scale)  # what a 0 of the matrix' input stands for
        absent = zero.clone()  # and what is read again where images are contiguous
        floors = (stack.floors - mean[:, own:]) / scale[:, own:]
        absent[:, own:] = floors.clamp(-stack.standardize.LIMIT, stack.standardize.LIMIT)
        here, gone = zero - absent, absent
        of_columns = torch.zeros(len(weight), nhwc, weight.shape[-1]).double()
        of_columns.scatter_add_(1, at[..., None].expand_as(weight), weight / scale[..., None])
        of_columns[:, constant] += bias[:, 0] + (weight * gone[..., None]).sum(1)
        of_nhwc = (weight * here[..., None]).sum(1, keepdim=True)
        whole = torch.cat([of_columns, of_nhwc, effect], 1)
        self.weight = _beside(whole[..., :-1], whole[..., -1:], constant)


def _beside(hidden: Tensor, line: Tensor, constant: int) -> Tensor:
    """Weight (members, inputs, hidden + 3): a unit that is 1 and the linear path past the bend."""
    one = torch.zeros_like(line)
    one[:, constant] = UNIT
    return torch.cat([hidden, one, line, -line], -1)


def second_layer(net: QuantileMLP) -> Tensor:
    """Weight (members, hidden + 3, hidden + 3)."""
    return _beside(*_after(net.second.weight, net.second.bias), net.second.weight.shape[1])


def head(net: QuantileMLP) -> Tensor:
    """Weight (members, hidden + 3, levels + 1): steps away from the median, it and its negative."""
    whole, line = _after(net.head.weight, net.head.bias)
    median = whole[..., MIDDLE : MIDDLE + 1] + line
    return torch.cat([whole[..., OUTER], median, -median], -1)


def _after(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weights, given what a layer above made, of a layer and of the linear path beside it."""
    path = torch.zeros(len(weight), 2, weight.shape[2])
    whole = torch.cat([weight, bias, path], 1).double()
    line = torch.zeros_like(whole[..., :1])
    line[:, -2], line[:, -1] = 1.0, -1.0
    return whole, line


def steps_and_medians(stack: ScalarStack, levels: FoldedLevels) -> tuple[Tensor, Tensor]:
    """What levels ask for, of the softplus of what a head gives: weight and bias."""
    scale, mean = (t.flatten().double() for t in (stack.y_scale, stack.y_mean))
    gaps = scale[:, None, None] * (outward() @ levels.of_gaps)
    median = (scale[:, None] * levels.of_median)[:, None]
    weight = torch.cat([gaps, median, -median], 1).flatten(0, 1)
    return weight, mean @ levels.of_median + levels.shift
