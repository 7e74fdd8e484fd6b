"""Predictors from raw features to calibrated quantiles, as they are trained: torch modules.

Logarithms, ensemble, calibration and unit are inside, so that training and serving cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from presage.features.colocation_member import MEMBER_IDENTITY
from presage.features.columns.schema import columns
from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.quantities.quantity import LEAST_FRACTION, Quantity
from presage.models.calibration.margins import ByLevel, Margins
from presage.models.networks.ensemble import combined
from presage.models.training.device_effect import same_device
from presage.models.training.fit import LEVELS, ScalarStack, log_offsets
from presage.models.training.fit_interference import InterferenceStack
from presage.system.arrays import Array


class FeatureTransform(nn.Module):
    """What :func:`presage.models.training.fit.transform_features` does, as part of the graph."""

    offsets: Tensor
    as_is: Tensor

    def __init__(self) -> None:
        super().__init__()
        offsets = torch.from_numpy(log_offsets("full")).float()
        self.register_buffer("as_is", torch.isnan(offsets))
        self.register_buffer("offsets", torch.nan_to_num(offsets, nan=1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Raw (..., columns) -> as networks see them."""
        return torch.where(self.as_is, x, torch.log(x.clamp_min(0) + self.offsets))


class Calibration(nn.Module):
    """What :func:`presage.models.calibration.conformal.calibrate` does, as part of the graph.

    ``identity`` are the columns, as networks see them, that devices with margins of their own
    are known by.
    """

    shift: Tensor
    known: Tensor
    own: Tensor
    identity: Tensor

    def __init__(self, margins: Margins, identity: Sequence[int]) -> None:
        super().__init__()
        shift = _shift(margins.everywhere)
        self.register_buffer("shift", shift)
        self.register_buffer("identity", torch.tensor(identity))
        self.register_buffer("known", torch.tensor([who for who, _ in margins.devices]))
        further = [_shift(own) - shift for _, own in margins.devices]
        self.register_buffer("own", torch.stack(further) if further else torch.zeros(0))

    def forward(self, quantiles: Tensor, x: Tensor) -> Tensor:
        """Quantiles (..., levels) of rows (..., columns)."""
        shift = self.shift
        if len(self.known):
            same = same_device(x[..., self.identity], self.known).to(x.dtype)
            same = same / same.sum(-1, keepdim=True).clamp_min(1)  # two may be nearly alike
            shift = shift + torch.matmul(same, self.own)
        q = list(torch.unbind(quantiles + shift, -1))
        middle = LEVELS.index(0.5)
        for i in range(middle - 1, -1, -1):
            q[i] = torch.minimum(q[i], q[i + 1])
        for i in range(middle + 1, len(q)):
            q[i] = torch.maximum(q[i], q[i - 1])
        return torch.stack(q, dim=-1)


def _shift(margins: ByLevel) -> Tensor:
    """Of every level, downwards below the median and upwards above it."""
    shift = torch.zeros(len(LEVELS))
    for level, margin in margins.items():
        low = LEVELS.index(level)
        shift[low] -= margin
        shift[len(LEVELS) - 1 - low] += margin
    return shift


class ScalarPredictor(nn.Module):
    """Raw features (rows, columns) -> calibrated quantiles (rows, levels) in the unit."""

    def __init__(self, stack: ScalarStack, quantity: Quantity, margins: Margins) -> None:
        super().__init__()
        self.transform = FeatureTransform()
        self.stack = stack
        self.calibrate = Calibration(margins, stack.identity.tolist())
        self.is_scale = quantity.is_scale
        self.prior = None if quantity.prior is None else columns("full").index(quantity.prior)

    def forward(self, features: Tensor) -> Tensor:
        """(rows, columns) -> (rows, levels)."""
        x = self.transform(features)
        learnt: Tensor = self.calibrate(combined(self.stack(x)), x)
        if not self.is_scale:
            return torch.sigmoid(learnt)
        # e^15 times the prior is no forecast any more, but it is a number.
        scale = torch.exp(learnt.clamp(-15.0, 15.0))
        return scale if self.prior is None else scale * features[:, self.prior : self.prior + 1]


class BusyAsTheRoofline(nn.Module):
    """Utilization by first principles: the part of a step in which nothing waits for a launch.

    For a class of devices that it was never measured on; every quantile is equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.overhead = columns("full").index("overhead_share")

    def forward(self, features: Tensor) -> Tensor:
        """(rows, columns) -> (rows, levels)."""
        busy = (1 - features[:, self.overhead : self.overhead + 1]).clamp(LEAST_FRACTION, 1.0)
        return busy.expand(-1, len(LEVELS))


class Choice(nn.Module):
    """Rows by one of two modules, of the same inputs and outputs.

    Co-locations are chosen for as a whole: their members are on one device.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def which(self, rows: Tensor) -> Tensor:
        """Rows (rows, columns) or (C, K, columns) -> (rows, 1) or (C, 1, 1).

        Above 0 where the first is asked.
        """
        of_rows = self._which(rows)
        return of_rows if rows.dim() == 2 else of_rows.amax(1, keepdim=True)

    def _which(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Rows (..., columns) -> (..., levels)."""
        inputs = (rows,) if mask is None else (rows, mask)
        return torch.where(self.which(rows) > 0, self.first(*inputs), self.second(*inputs))


class OfDeviceClass(Choice):
    """GPUs' rows by one module, processors' by another; ``column`` is the compute capability."""

    def __init__(self, processor: nn.Module, gpu: nn.Module, column: int) -> None:
        super().__init__(gpu, processor)
        self.column = column

    def _which(self, rows: Tensor) -> Tensor:
        return rows[..., self.column : self.column + 1]


class AsMeasured(Choice):
    """Rows on devices that were measured here by one module, on others by what came along.

    What went on from pretrained networks with the rows of one card forgets the others' (decision
    12). ``known`` (devices, columns) are identities as networks see them; ``columns`` their
    positions in a row, which is transformed first where it is ``raw``.
    """

    known: Tensor

    def __init__(
        self,
        here: nn.Module,
        elsewhere: nn.Module,
        known: Array,
        columns: Sequence[int],
        *,
        raw: bool,
    ) -> None:
        super().__init__(here, elsewhere)
        self.transform = FeatureTransform() if raw else nn.Identity()
        self.register_buffer("known", torch.from_numpy(np.unique(known, axis=0)).float())
        self.columns = list(columns)

    def _which(self, rows: Tensor) -> Tensor:
        identity = self.transform(rows)[..., self.columns]
        return same_device(identity, self.known).to(rows.dtype).amax(-1, keepdim=True)


def of_device_class(predictors: Mapping[str, nn.Module], *, scale: bool, column: int) -> nn.Module:
    """One predictor of those of each class, at least one of them.

    Where a class has none, a factor over physics carries over from the other; a fraction does
    not, and is what first principles give.
    """
    other = next(iter(predictors.values())) if scale else BusyAsTheRoofline()
    processor, gpu = (predictors.get(name, other) for name in DEVICE_CLASSES)
    return gpu if processor is gpu else OfDeviceClass(processor, gpu, column)


class InterferencePredictor(nn.Module):
    """Members (C, K, ``MEMBER_COLUMNS``) and mask (C, K) -> calibrated slowdowns (C, K, levels)."""

    def __init__(self, stack: InterferenceStack, margins: Margins) -> None:
        super().__init__()
        self.stack = stack
        self.calibrate = Calibration(margins, MEMBER_IDENTITY)
        self.members = int(stack.standardize.mean.shape[0])

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """(C, K, G) and (C, K) -> (C, K, levels)."""
        log_slowdown = combined(self.stack(members.expand(self.members, -1, -1, -1), mask))
        log_slowdown = self.calibrate(log_slowdown, members).clamp_min(0.0)
        # A job without co-runners is not slowed down, whatever a network says.
        shared = (mask.sum(-1, keepdim=True) > 1.5).to(members.dtype)
        return torch.exp(log_slowdown * shared[..., None] * mask[..., None])
