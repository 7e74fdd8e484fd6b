"""Fused matrices of a quantile network: everything linear is part of a matrix.

Clamping a standardized logarithm equals clamping the raw column to other bounds, so standardizing
becomes part of the first matrix. Two units take the linear path past an activation, because
``silu(v) - silu(-v) = v`` and ``softplus(v) - softplus(-v) = v``. A unit that is always 1 replaces
the bias of the next layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.onnx_export.fused_columns import ClampedColumn, ColumnIndex, clamp_column
from presage.models.onnx_export.fused_levels import MIDDLE, OUTER, FusedLevels, gap_from_steps
from presage.models.training.fit import ScalarStack

UNIT = 1.2784645427610738  # silu(UNIT) is 1


class FirstLayer:
    """Columns that a stack reads, and the fused first layer.

    Attributes
    ----------
    logs, layout_logs, plain : ColumnIndex
        Columns read as logarithms, as logarithms only where images are channels-last, and without
        a logarithm. The first plain column is always 1.
    weight : Tensor of shape (members, inputs, hidden + 3)
        Inputs are these columns, whether images are channels-last, and one truth value for each
        device of the stack.
    """

    def __init__(self, stack: ScalarStack) -> None:
        self.logs, self.layout_logs, self.plain = ColumnIndex(), ColumnIndex(), ColumnIndex()
        self.plain.place(ClampedColumn(0, 1.0, 1.0))
        mean, scale = (t[:, 0].double() for t in (stack.standardize.mean, stack.standardize.scale))
        places, is_log = self._place_columns(stack, mean, scale)
        self.weight = _fuse_first_layer(
            stack,
            mean,
            scale,
            places,
            is_log,
            constant=len(self.logs) + len(self.layout_logs),
            n_columns=len(self.logs) + len(self.layout_logs) + len(self.plain),
        )

    def _place_columns(
        self, stack: ScalarStack, mean: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the columns that the members read.

        Returns
        -------
        Tensor of int, shape (members, columns)
            Position of each column among the inputs.
        Tensor of bool, shape (columns,)
            Whether the column is read as a logarithm.
        """
        positions = [*stack.columns.tolist(), *stack.by_layout.tolist()]
        reach = stack.standardize.LIMIT * scale
        columns = [
            [clamp_column(*bounds) for bounds in zip(positions, *member, strict=True)]
            for member in zip(mean.tolist(), reach.tolist(), strict=True)
        ]
        first_by_layout = len(stack.columns)
        groups = [
            self.layout_logs
            if k >= first_by_layout
            else self.plain
            if math.isnan(column.offset)
            else self.logs
            for k, column in enumerate(columns[0])
        ]
        places = [
            [group.place(column) for group, column in zip(groups, member, strict=True)]
            for member in columns
        ]
        constant = len(self.logs) + len(self.layout_logs)
        start = {id(self.logs): 0, id(self.layout_logs): len(self.logs), id(self.plain): constant}
        at = torch.tensor(
            [[start[id(g)] + p for g, p in zip(groups, member, strict=True)] for member in places]
        )
        return at, torch.tensor([group is not self.plain for group in groups])


def _fuse_first_layer(
    stack: ScalarStack,
    mean: Tensor,
    scale: Tensor,
    places: Tensor,
    is_log: Tensor,
    *,
    constant: int,
    n_columns: int,
) -> Tensor:
    """Return the weight (members, inputs, hidden + 3) of the first layer.

    ``constant`` is the position of the input that is always 1; ``n_columns`` inputs are columns.
    """
    first_by_layout = len(stack.columns)
    weight = torch.cat([stack.net.first.weight, stack.net.linear.weight], -1).double()
    bias = torch.cat([stack.net.first.bias, stack.net.linear.bias], -1).double()
    effect = stack.device_effect.effect_weight.double()  # (members, devices, hidden + 1)
    zero = torch.where(is_log, 0.0, -mean / scale)  # meaning of an input of 0
    absent = zero.clone()  # meaning of a layout column where images are contiguous
    floors = (stack.floors - mean[:, first_by_layout:]) / scale[:, first_by_layout:]
    limit = stack.standardize.LIMIT
    absent[:, first_by_layout:] = floors.clamp(-limit, limit)
    if_present, if_absent = zero - absent, absent
    by_column = torch.zeros(len(weight), n_columns, weight.shape[-1]).double()
    by_column.scatter_add_(1, places[..., None].expand_as(weight), weight / scale[..., None])
    by_column[:, constant] += bias[:, 0] + (weight * if_absent[..., None]).sum(1)
    by_layout = (weight * if_present[..., None]).sum(1, keepdim=True)
    inputs = torch.cat([by_column, by_layout, effect], 1)
    return _add_linear_path(inputs[..., :-1], inputs[..., -1:], constant)


def _add_linear_path(hidden: Tensor, line: Tensor, constant: int) -> Tensor:
    """Return a weight (members, inputs, hidden + 3) with a constant unit and the linear path."""
    unit = torch.zeros_like(line)
    unit[:, constant] = UNIT
    return torch.cat([hidden, unit, line, -line], -1)


def make_second_layer(net: QuantileMLP) -> Tensor:
    """Return the weight (members, hidden + 3, hidden + 3) of the second layer."""
    return _add_linear_path(
        *_split_linear_path(net.second.weight, net.second.bias), net.second.weight.shape[1]
    )


def make_head(net: QuantileMLP) -> Tensor:
    """Return the weight (members, hidden + 3, levels + 1) of the head.

    Outputs are the steps away from the median, the median and its negative.
    """
    extended, line = _split_linear_path(net.head.weight, net.head.bias)
    median = extended[..., MIDDLE : MIDDLE + 1] + line
    return torch.cat([extended[..., OUTER], median, -median], -1)


def _split_linear_path(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of a layer, and of the linear path that arrives in two units."""
    path = torch.zeros(len(weight), 2, weight.shape[2])
    extended = torch.cat([weight, bias, path], 1).double()
    line = torch.zeros_like(extended[..., :1])
    line[:, -2], line[:, -1] = 1.0, -1.0
    return extended, line


def make_level_layer(stack: ScalarStack, levels: FusedLevels) -> tuple[Tensor, Tensor]:
    """Return weight and bias that map softplus(head) to the inputs of ``levels``."""
    scale, mean = (t.flatten().double() for t in (stack.y_scale, stack.y_mean))
    gaps = scale[:, None, None] * (gap_from_steps() @ levels.gap_weight)
    median = (scale[:, None] * levels.median_weight)[:, None]
    weight = torch.cat([gaps, median, -median], 1).flatten(0, 1)
    return weight, mean @ levels.median_weight + levels.shift
