"""Solo predictors as they are served: the same sums in fewer steps.

A network of a hundred inputs takes a processor microseconds, and so does every operator of an
ONNX graph, however small. What training keeps apart is therefore put together once, when a
predictor is exported; what it says stays the same (decision 20).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.models.export_onnx import ScalarPredictor
from presage.models.fit import CHANNELS_LAST
from presage.models.folded_columns import Columns, Conjunction, alike, positive, truth
from presage.models.folded_levels import FoldedLevels
from presage.models.folded_network import FirstLayer, head, second_layer
from presage.models.folded_parts import FoldedParts


class FoldedScalar(nn.Module):
    """Raw features (rows, columns) -> what a :class:`ScalarPredictor` says of them."""

    positions: Tensor
    low: Tensor
    high: Tensor
    offsets: Tensor
    truth_weight: Tensor
    truth_bias: Tensor
    first: Tensor
    second: Tensor
    head: Tensor

    def __init__(self, predictor: ScalarPredictor) -> None:
        super().__init__()
        stack = predictor.stack
        self.is_scale, self.prior = predictor.is_scale, predictor.prior
        first = FirstLayer(stack)
        self.parts = None if stack.parts is None else FoldedParts(stack.parts)
        masks, shares = ([], []) if self.parts is None else (self.parts.masks, self.parts.shares)
        self.levels = FoldedLevels(stack, predictor.calibrate, len(masks) // len(stack.y_mean))
        devices = [alike(device, stack.identity.tolist()) for device in stack.device_effect.known]
        boxes = Columns()
        weight, bias = truth([_NHWC, *devices, *self.levels.devices, *masks], boxes)
        logs = [*first.logs, *first.again]
        columns = [*logs, *first.as_is, *shares, *boxes]
        self.read_again = len(first.again)
        self.widths = [len(logs), len(first.as_is), len(shares), len(boxes)]
        self.truths = [1 + len(devices), len(self.levels.devices), len(masks)]
        self.outputs = len(stack.y_mean) * head(stack.net).shape[-1]
        buffers = {
            "low": torch.tensor([column.low for column in columns]),
            "high": torch.tensor([column.high for column in columns]),
            "offsets": torch.tensor([column.offset for column in logs]),
            "truth_weight": weight,
            "truth_bias": bias,
            "first": first.weight,
            "second": second_layer(stack.net),
            "head": head(stack.net),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().float().contiguous())
        self.register_buffer("positions", torch.tensor([column.position for column in columns]))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, columns) -> (rows, levels)."""
        raw = features.index_select(1, self.positions)
        kept = torch.minimum(torch.maximum(raw, self.low), self.high)
        logs, as_is, shares, _ = _split(kept, self.widths)
        inside = (kept == raw)[:, -self.widths[-1] :].to(raw.dtype)
        truths = torch.addmm(self.truth_bias, inside, self.truth_weight).relu()
        who, own, masks = _split(truths, self.truths)
        logs = (logs + self.offsets).log()
        if self.read_again:
            plain, again = logs.split([logs.shape[1] - self.read_again, self.read_again], 1)
            logs = torch.cat([plain, again * who[:, :1]], 1)
        seen = torch.cat([logs, as_is, who], 1)
        hidden = F.silu(torch.matmul(F.silu(torch.matmul(seen, self.first)), self.second))
        steps = F.softplus(torch.matmul(hidden, self.head))  # (members, rows, levels + 1)
        steps = steps.permute(1, 0, 2).reshape(-1, self.outputs)
        sums = None if self.parts is None else self.parts(shares) * masks
        learnt: Tensor = self.levels(steps, sums, own)
        if not self.is_scale:
            return torch.sigmoid(learnt)
        # e^15 times the prior is no forecast any more, but it is a number.
        scale = torch.exp(learnt.clamp(-15.0, 15.0))
        return scale if self.prior is None else scale * features[:, self.prior : self.prior + 1]


_NHWC = Conjunction(frozenset({positive(CHANNELS_LAST)}))


def _split(rows: Tensor, widths: list[int]) -> list[Tensor | None]:
    """Columns of these widths, None for none."""
    parts = iter(rows.split([width for width in widths if width], 1))
    return [next(parts) if width else None for width in widths]
