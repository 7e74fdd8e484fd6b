"""Fused inference graph of the solo predictors; ``fused_interference`` has the other one.

A network with a hundred inputs takes a CPU microseconds, and so does every operator of an ONNX
graph, however small. Steps that are separate in training are therefore fused when a predictor is
exported. The results are equal up to rounding (decision 20). The names of buffers are names in the
ONNX file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.predictors import ScalarPredictor
from presage.models.onnx_export.fused_columns import (
    ClampedColumn,
    ColumnIndex,
    Conjunction,
    is_on_device,
    is_positive,
    make_truth_layer,
)
from presage.models.onnx_export.fused_components import FusedComponents
from presage.models.onnx_export.fused_levels import FusedLevels
from presage.models.onnx_export.fused_network import (
    FirstLayer,
    make_head,
    make_level_layer,
    make_second_layer,
)
from presage.models.training.fit import CHANNELS_LAST


class FusedScalar(nn.Module):
    """:class:`ScalarPredictor` with fewer operators and equal results up to rounding."""

    positions: Tensor
    low: Tensor
    high: Tensor
    offsets: Tensor
    middles: Tensor
    truth_weight: Tensor
    truth_bias: Tensor
    first: Tensor
    second: Tensor
    head: Tensor
    level_weight: Tensor
    level_bias: Tensor
    of_sums: Tensor
    of_trees: Tensor

    def __init__(self, predictor: ScalarPredictor) -> None:
        super().__init__()
        stack = predictor.stack
        self.is_scale = predictor.is_scale
        first = FirstLayer(stack)
        self.parts = None if stack.parts is None else FusedComponents(stack.parts)
        masks, shares = ([], []) if self.parts is None else (self.parts.masks, self.parts.shares)
        members = len(stack.y_mean)
        self.levels = FusedLevels(members, predictor.calibrate, raw=True)
        level_weight, level_bias = make_level_layer(stack, self.levels)
        of_sums = self.levels.median_weight.repeat(len(masks) // members, 1)
        devices = [
            is_on_device(device, stack.identity.tolist()) for device in stack.device_effect.known
        ]
        boxes = ColumnIndex()
        weight, bias = make_truth_layer(
            [_IS_CHANNELS_LAST, *devices, *self.levels.devices, *masks], boxes
        )
        logs = [*first.logs, *first.layout_logs]
        prior = _unclamped(predictor.prior)
        columns = [*logs, *first.plain, *shares, *prior, *boxes]
        of_trees = {}
        if predictor.trees is not None:
            # The first output is the median, of which the networks have the rest of the weight.
            rest = 1 - predictor.trees.weight.double()
            for of_level in (level_weight, level_bias[None], of_sums):
                of_level[:, 0] *= rest
            of_trees["of_trees"] = torch.eye(len(level_bias))[:, :1]
        self.n_layout_logs = len(first.layout_logs)
        self.widths = _drop_empty(
            logs=len(logs), as_is=len(first.plain), shares=len(shares), prior=len(prior),
            boxes=len(boxes),
        )  # fmt: skip
        self.truth_widths = _drop_empty(
            nhwc=1, devices=len(devices), own=len(self.levels.devices), masks=len(masks)
        )
        self._register(
            columns,
            middles=torch.tensor([[column.middle] for column in logs]),
            offsets=torch.tensor([[column.offset] for column in logs]),
            truth_weight=weight.T,
            truth_bias=bias[:, None],
            first=first.weight.mT,
            second=make_second_layer(stack.net).mT,
            head=make_head(stack.net).mT,
            level_weight=level_weight.T,
            level_bias=level_bias[:, None],
            of_sums=of_sums.T,
            **of_trees,
        )

    def _register(self, columns: Sequence[ClampedColumn], **matrices: Tensor) -> None:
        """Register the buffers: bounds and positions of columns, and matrices."""
        buffers = {
            "low": torch.tensor([[column.low] for column in columns]),
            "high": torch.tensor([[column.high] for column in columns]),
            **matrices,
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().float().contiguous())
        self.register_buffer("positions", torch.tensor([column.position for column in columns]))

    def forward(self, features: Tensor, trees: Tensor | None = None) -> Tensor:
        """Return quantiles (rows, levels) of raw features (rows, columns).

        ``trees`` (rows, 1) are weighted forecasts of the predictor's trees.
        """
        # Transposed, so that selected and concatenated columns are contiguous in memory.
        raw = features.T.index_select(0, self.positions)
        clamped = torch.minimum(torch.maximum(raw, self.low), self.high)
        parts = _split(clamped, self.widths)
        inside = (clamped == raw)[-self.widths["boxes"] :].to(raw.dtype)
        truths = _split(
            torch.addmm(self.truth_bias, self.truth_weight, inside).relu(), self.truth_widths
        )
        logs = [(parts["logs"] + self.offsets).log() - self.middles]
        if self.n_layout_logs:
            plain = len(self.offsets) - self.n_layout_logs
            logs = list(torch.split(logs[0], [plain, self.n_layout_logs]))
            logs[1] = logs[1] * truths["nhwc"]
        inputs = torch.cat([*logs, parts["as_is"], truths["nhwc"], truths["devices"]])
        hidden = F.silu(torch.matmul(self.second, F.silu(torch.matmul(self.first, inputs))))
        steps = F.softplus(torch.matmul(self.head, hidden))  # (members, levels + 1, rows)
        inner = torch.addmm(self.level_bias, self.level_weight, steps.flatten(0, 1))
        if self.parts is not None:
            sums = self.parts(parts["shares"]) * truths["masks"]
            inner = torch.addmm(inner, self.of_sums, sums)
        if trees is not None:
            inner = torch.addmm(inner, self.of_trees, trees.T)
        output: Tensor = self.levels(inner, truths.get("own"))
        if not self.is_scale:
            return torch.sigmoid(output).T
        # Clamped to keep the forecast finite; e^15 times the prior is meaningless anyway.
        scale = torch.exp(output.clamp(-15.0, 15.0))
        return (scale * parts["prior"] if "prior" in parts else scale).T


_IS_CHANNELS_LAST = Conjunction(frozenset({is_positive(CHANNELS_LAST)}))


def _unclamped(position: int | None) -> list[ClampedColumn]:
    """Return the column without bounds; nothing without a position."""
    return [] if position is None else [ClampedColumn(position, -math.inf, math.inf)]


def _drop_empty(**widths: int) -> dict[str, int]:
    """Return the widths that are not 0."""
    return {name: width for name, width in widths.items() if width}


def _split(rows: Tensor, widths: dict[str, int]) -> dict[str, Tensor]:
    """Split rows into parts of these widths, by name."""
    return dict(zip(widths, torch.split(rows, list(widths.values())), strict=True))
