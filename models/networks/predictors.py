"""Predictors from raw features to calibrated quantiles, as torch modules.

Logarithms, ensemble, calibration and unit conversion are part of the module, so training and
serving cannot differ. The names of buffers and submodules are names in the ONNX files.
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
from presage.models.networks.boosted_trees import BoostedTrees
from presage.models.networks.ensemble import combine_members
from presage.models.training.device_effect import is_same_device
from presage.models.training.fit import LEVELS, ScalarStack, log_offsets
from presage.models.training.fit_interference import InterferenceStack
from presage.system.arrays import Array


class FeatureTransform(nn.Module):
    """:func:`presage.models.training.fit.transform_features` as part of the graph."""

    offsets: Tensor
    as_is: Tensor

    def __init__(self) -> None:
        super().__init__()
        offsets = torch.from_numpy(log_offsets("full")).float()
        self.register_buffer("as_is", torch.isnan(offsets))
        self.register_buffer("offsets", torch.nan_to_num(offsets, nan=1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Transform raw features (..., columns) to network inputs."""
        return torch.where(self.as_is, x, torch.log(x.clamp_min(0) + self.offsets))


class Calibration(nn.Module):
    """:func:`presage.models.calibration.conformal.calibrate` as part of the graph.

    Parameters
    ----------
    margins : Margins
    identity : sequence of int
        Positions of the transformed columns that identify devices with margins of their own.
    """

    shift: Tensor
    known: Tensor
    own: Tensor
    identity: Tensor

    def __init__(self, margins: Margins, identity: Sequence[int]) -> None:
        super().__init__()
        shift = _margins_to_shift(margins.default)
        self.register_buffer("shift", shift)
        self.register_buffer("identity", torch.tensor(identity))
        self.register_buffer("known", torch.tensor([values for values, _ in margins.devices]))
        further = [_margins_to_shift(own) - shift for _, own in margins.devices]
        self.register_buffer("own", torch.stack(further) if further else torch.zeros(0))

    def forward(self, quantiles: Tensor, x: Tensor) -> Tensor:
        """Return calibrated quantiles (..., levels) of rows x (..., columns)."""
        shift = self.shift
        if len(self.known):
            same = is_same_device(x[..., self.identity], self.known).to(x.dtype)
            same = same / same.sum(-1, keepdim=True).clamp_min(1)  # two devices may be nearly equal
            shift = shift + torch.matmul(same, self.own)
        q = list(torch.unbind(quantiles + shift, -1))
        middle = LEVELS.index(0.5)
        for i in range(middle - 1, -1, -1):
            q[i] = torch.minimum(q[i], q[i + 1])
        for i in range(middle + 1, len(q)):
            q[i] = torch.maximum(q[i], q[i - 1])
        return torch.stack(q, dim=-1)


def _margins_to_shift(margins: ByLevel) -> Tensor:
    """Return the shift per level: negative below the median, positive above it."""
    shift = torch.zeros(len(LEVELS))
    for level, margin in margins.items():
        low = LEVELS.index(level)
        shift[low] -= margin
        shift[len(LEVELS) - 1 - low] += margin
    return shift


class ScalarPredictor(nn.Module):
    """Solo predictor: raw features (rows, columns) to quantiles (rows, levels) in the unit.

    With ``trees``, medians are means of networks and trees, and other quantiles keep their distance
    from the median.
    """

    def __init__(
        self,
        stack: ScalarStack,
        quantity: Quantity,
        margins: Margins,
        trees: BoostedTrees | None = None,
    ) -> None:
        super().__init__()
        self.transform = FeatureTransform()
        self.stack, self.trees = stack, trees
        self.calibrate = Calibration(margins, stack.identity.tolist())
        self.is_scale = quantity.is_scale
        self.prior = None if quantity.prior is None else columns("full").index(quantity.prior)

    def forward(self, features: Tensor) -> Tensor:
        """Return quantiles (rows, levels)."""
        x = self.transform(features)
        quantiles = combine_members(self.stack(x))
        if self.trees is not None:
            quantiles = self.trees.move_medians(quantiles, features)
        output: Tensor = self.calibrate(quantiles, x)
        if not self.is_scale:
            return torch.sigmoid(output)
        # Clamped to keep the forecast finite; e^15 times the prior is meaningless anyway.
        scale = torch.exp(output.clamp(-15.0, 15.0))
        return scale if self.prior is None else scale * features[:, self.prior : self.prior + 1]


class RooflineUtilization(nn.Module):
    """Compute utilization by first principles: the part of a step not spent on launches.

    Used for a device class on which utilization was never measured. All quantiles are equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.overhead = columns("full").index("overhead_share")

    def forward(self, features: Tensor) -> Tensor:
        """Return quantiles (rows, levels)."""
        busy = (1 - features[:, self.overhead : self.overhead + 1]).clamp(LEAST_FRACTION, 1.0)
        return busy.expand(-1, len(LEVELS))


class Router(nn.Module):
    """Module that evaluates each row with one of two modules of equal inputs and outputs.

    All members of a co-location take the same module: they are on one device.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def route(self, rows: Tensor) -> Tensor:
        """Return numbers (rows, 1) or (C, 1, 1), above 0 where the first module is used.

        ``rows`` has the shape (rows, columns) or (C, K, columns).
        """
        routes = self._route_rows(rows)
        return routes if rows.dim() == 2 else routes.amax(1, keepdim=True)

    def _route_rows(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return quantiles (..., levels) of rows (..., columns)."""
        inputs = (rows,) if mask is None else (rows, mask)
        return torch.where(self.route(rows) > 0, self.first(*inputs), self.second(*inputs))


class DeviceClassRouter(Router):
    """Router between a module for GPUs and one for processors.

    ``column`` is the position of the compute capability, which is 0 for processors.
    """

    def __init__(self, processor: nn.Module, gpu: nn.Module, column: int) -> None:
        super().__init__(gpu, processor)
        self.column = column

    def _route_rows(self, rows: Tensor) -> Tensor:
        return rows[..., self.column : self.column + 1]


class MeasuredDeviceRouter(Router):
    """Router between fine-tuned networks, for the devices they saw, and pretrained networks.

    Networks that are fine-tuned on the rows of one device forget the others (decision 12).

    Parameters
    ----------
    measured, fallback : nn.Module
        Modules for the ``known`` devices and for all others.
    known : ndarray of shape (rows, columns)
        Transformed identities of the measured devices.
    columns : sequence of int
        Positions of the identity in a row.
    raw : bool
        Whether rows hold raw features, to be transformed first.
    """

    known: Tensor

    def __init__(
        self,
        measured: nn.Module,
        fallback: nn.Module,
        known: Array,
        columns: Sequence[int],
        *,
        raw: bool,
    ) -> None:
        super().__init__(measured, fallback)
        self.transform = FeatureTransform() if raw else nn.Identity()
        self.register_buffer("known", torch.from_numpy(np.unique(known, axis=0)).float())
        self.columns = list(columns)

    def _route_rows(self, rows: Tensor) -> Tensor:
        identity = self.transform(rows)[..., self.columns]
        return is_same_device(identity, self.known).to(rows.dtype).amax(-1, keepdim=True)


def route_by_device_class(
    predictors: Mapping[str, nn.Module], *, scale: bool, column: int
) -> nn.Module:
    """Return one predictor for all device classes, from the predictors of at least one.

    A class without a predictor uses that of the other class if the quantity is a ``scale`` (a
    factor over the prior carries over), else :class:`RooflineUtilization`.
    """
    other = next(iter(predictors.values())) if scale else RooflineUtilization()
    processor, gpu = (predictors.get(name, other) for name in DEVICE_CLASSES)
    return gpu if processor is gpu else DeviceClassRouter(processor, gpu, column)


class InterferencePredictor(nn.Module):
    """Interference predictor: members (C, K, G) and mask (C, K) to slowdowns (C, K, levels).

    The G columns are ``MEMBER_COLUMNS``. Slowdowns are calibrated and at least 1.
    """

    def __init__(self, stack: InterferenceStack, margins: Margins) -> None:
        super().__init__()
        self.stack = stack
        self.calibrate = Calibration(margins, MEMBER_IDENTITY)
        self.members = int(stack.standardize.mean.shape[0])

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """Return slowdowns (C, K, levels)."""
        log_slowdown = combine_members(self.stack(members.expand(self.members, -1, -1, -1), mask))
        log_slowdown = self.calibrate(log_slowdown, members).clamp_min(0.0)
        # The slowdown of a job without co-runners is 1 by definition.
        is_shared = (mask.sum(-1, keepdim=True) > 1.5).to(members.dtype)
        return torch.exp(log_slowdown * is_shared[..., None] * mask[..., None])
