"""Solo predictors as they are served: the same sums in fewer steps.

A network of a hundred inputs takes a processor microseconds, and so does every operator of an
ONNX graph, however small. What training keeps apart is therefore put together once, when a
predictor is exported; what it says stays the same (decision 20).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.networks.predictors import ScalarPredictor
from presage.models.onnx_export.fused_columns import (
    Columns,
    Conjunction,
    Held,
    alike,
    positive,
    truth,
)
from presage.models.onnx_export.fused_components import FoldedParts
from presage.models.onnx_export.fused_levels import FoldedLevels
from presage.models.onnx_export.fused_network import (
    FirstLayer,
    head,
    second_layer,
    steps_and_medians,
)
from presage.models.training.fit import CHANNELS_LAST


class FoldedScalar(nn.Module):
    """Raw features (rows, columns) -> what a :class:`ScalarPredictor` says of them."""

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

    def __init__(self, predictor: ScalarPredictor) -> None:
        super().__init__()
        stack = predictor.stack
        self.is_scale = predictor.is_scale
        first = FirstLayer(stack)
        self.parts = None if stack.parts is None else FoldedParts(stack.parts)
        masks, shares = ([], []) if self.parts is None else (self.parts.masks, self.parts.shares)
        members = len(stack.y_mean)
        self.levels = FoldedLevels(members, predictor.calibrate, raw=True)
        level_weight, level_bias = steps_and_medians(stack, self.levels)
        of_sums = self.levels.of_median.repeat(len(masks) // members, 1)
        devices = [alike(device, stack.identity.tolist()) for device in stack.device_effect.known]
        boxes = Columns()
        weight, bias = truth([_NHWC, *devices, *self.levels.devices, *masks], boxes)
        logs = [*first.logs, *first.again]
        prior = [] if predictor.prior is None else [Held(predictor.prior, -math.inf, math.inf)]
        columns = [*logs, *first.as_is, *shares, *prior, *boxes]
        self.read_again = len(first.again)
        self.widths = _some(
            logs=len(logs), as_is=len(first.as_is), shares=len(shares), prior=len(prior),
            boxes=len(boxes),
        )  # fmt: skip
        self.truths = _some(
            nhwc=1, devices=len(devices), own=len(self.levels.devices), masks=len(masks)
        )
        buffers = {
            "low": torch.tensor([[column.low] for column in columns]),
            "high": torch.tensor([[column.high] for column in columns]),
            "middles": torch.tensor([[column.middle] for column in logs]),
            "offsets": torch.tensor([[column.offset] for column in logs]),
            "truth_weight": weight.T,
            "truth_bias": bias[:, None],
            "first": first.weight.mT,
            "second": second_layer(stack.net).mT,
            "head": head(stack.net).mT,
            "level_weight": level_weight.T,
            "level_bias": level_bias[:, None],
            "of_sums": of_sums.T,
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().float().contiguous())
        self.register_buffer("positions", torch.tensor([column.position for column in columns]))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, columns) -> (rows, levels)."""
        # Rows side by side: what is picked, split or put together is then long runs of memory.
        raw = features.T.index_select(0, self.positions)
        held = torch.minimum(torch.maximum(raw, self.low), self.high)
        of = _split(held, self.widths)
        inside = (held == raw)[-self.widths["boxes"] :].to(raw.dtype)
        true = _split(torch.addmm(self.truth_bias, self.truth_weight, inside).relu(), self.truths)
        logs = [(of["logs"] + self.offsets).log() - self.middles]
        if self.read_again:
            plain = len(self.offsets) - self.read_again
            logs = list(torch.split(logs[0], [plain, self.read_again]))
            logs[1] = logs[1] * true["nhwc"]
        inputs = torch.cat([*logs, of["as_is"], true["nhwc"], true["devices"]])
        hidden = F.silu(torch.matmul(self.second, F.silu(torch.matmul(self.first, inputs))))
        steps = F.softplus(torch.matmul(self.head, hidden))  # (members, levels + 1, rows)
        asked = torch.addmm(self.level_bias, self.level_weight, steps.flatten(0, 1))
        if self.parts is not None:
            sums = self.parts(of["shares"]) * true["masks"]
            asked = torch.addmm(asked, self.of_sums, sums)
        learnt: Tensor = self.levels(asked, true.get("own"))
        if not self.is_scale:
            return torch.sigmoid(learnt).T
        # e^15 times the prior is no forecast any more, but it is a number.
        scale = torch.exp(learnt.clamp(-15.0, 15.0))
        return (scale * of["prior"] if "prior" in of else scale).T


_NHWC = Conjunction(frozenset({positive(CHANNELS_LAST)}))


def _some(**widths: int) -> dict[str, int]:
    """Those that are not empty."""
    return {name: width for name, width in widths.items() if width}


def _split(rows: Tensor, widths: dict[str, int]) -> dict[str, Tensor]:
    """Parts of these widths."""
    return dict(zip(widths, torch.split(rows, list(widths.values())), strict=True))
