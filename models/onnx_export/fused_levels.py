"""Fused combination of a stack's outputs: levels, ensemble, disagreement and margins.

Levels are represented as a median and gaps, the distances of the other levels from it. Gaps that
are at least 0 and at least the next gap towards the median give ordered levels, whatever the
margins are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from presage.models.networks.ensemble import DISAGREEMENT_SCALE
from presage.models.networks.predictors import Calibration
from presage.models.onnx_export.fused_columns import Conjunction, is_on_device
from presage.models.training.device_effect import TOLERANCE
from presage.models.training.fit import LEVELS

MIDDLE = LEVELS.index(0.5)
OUTER = [level for level in range(len(LEVELS)) if level != MIDDLE]
OUTER_SIGNS = torch.tensor([1.0 if level > MIDDLE else -1.0 for level in OUTER])
# For every level but the median, the next one towards it; itself where that is the median.
INNER_NEIGHBOURS = [
    OUTER.index(level - step if level - step != MIDDLE else level)
    for level, step in zip(OUTER, OUTER_SIGNS.int().tolist(), strict=True)
]


class FusedLevels(nn.Module):
    """Levels from a row's median, gaps and contrasts between members, margins included.

    The names of buffers are names in the ONNX file.

    Attributes
    ----------
    devices : list of Conjunction
        Devices that have margins of their own.
    median_weight : Tensor of shape (members, outputs)
        Weight of the members' medians in the input of :meth:`forward`.
    gap_weight : Tensor of shape (members, gaps, outputs)
        Weight of the members' gaps.
    shift : Tensor of shape (outputs,)
        Addend: the default margins.
    """

    own: Tensor
    doubt: Tensor
    inner: Tensor
    side: Tensor

    def __init__(self, members: int, calibrate: Calibration, *, raw: bool) -> None:
        super().__init__()
        gaps = len(OUTER)
        self.widths = [1, gaps, members - 1] if members > 1 else [1, gaps]
        outputs = sum(self.widths)
        self.median_weight = torch.zeros(members, outputs).double()
        self.median_weight[:, 0] = 1 / members
        self.median_weight[:, 1 + gaps :] = _contrasts(members)
        self.gap_weight = torch.zeros(members, gaps, outputs).double()
        self.gap_weight[:, range(gaps), range(1, 1 + gaps)] = 1 / members
        self.shift = torch.zeros(outputs).double()
        self.shift[1 : 1 + gaps] = calibrate.shift[OUTER] * OUTER_SIGNS
        self.devices, own = _device_margins(calibrate, raw=raw)
        side = torch.zeros(len(LEVELS), gaps)
        side[OUTER, range(gaps)] = OUTER_SIGNS
        self.register_buffer("own", own.T.contiguous())
        self.register_buffer("doubt", torch.ones(gaps, 1))
        self.register_buffer("side", side)
        self.register_buffer("inner", torch.tensor(INNER_NEIGHBOURS))

    def forward(self, inputs: Tensor, on_device: Tensor | None) -> Tensor:
        """Return levels (levels, rows) of inputs (outputs, rows).

        ``on_device`` (devices, rows) is 1 where a row is on a device with margins of its own.
        """
        median, gaps, *contrasts = torch.split(inputs, self.widths)
        for contrast in contrasts:
            disagreement = torch.linalg.vector_norm(contrast, dim=0, keepdim=True)
            gaps = torch.addmm(gaps, self.doubt, disagreement)
        if on_device is not None:
            gaps = torch.addmm(gaps, self.own, on_device)
        gaps = gaps.relu()
        for _ in range(MIDDLE - 1):
            gaps = torch.maximum(gaps, gaps.index_select(0, self.inner))
        return torch.addmm(median, self.side, gaps)


def gap_from_steps() -> Tensor:
    """Return the matrix (steps, gaps) that sums the steps between the median and a level."""
    is_between = [
        [(a - MIDDLE) * (b - MIDDLE) > 0 and abs(a - MIDDLE) <= abs(b - MIDDLE) for b in OUTER]
        for a in OUTER
    ]
    return torch.tensor(is_between).double()


def _contrasts(members: int) -> Tensor:
    """Return Helmert contrasts (members, members - 1), scaled so that their norm widens gaps.

    The scale is that of :func:`presage.models.networks.ensemble.combine_members`.
    """
    out = torch.zeros(members, members - 1).double()
    for k in range(1, members):
        out[:k, k - 1], out[k, k - 1] = 1.0, -float(k)
        out[:, k - 1] *= DISAGREEMENT_SCALE / math.sqrt(k * (k + 1) * (members - 1))
    return out


def _device_margins(calibrate: Calibration, *, raw: bool) -> tuple[list[Conjunction], Tensor]:
    """Return the devices with margins of their own, and the addends of their gaps (devices, gaps).

    A row that matches several nearly equal devices gets the mean of their margins. Therefore each
    set of such devices is an entry too, with the mean less the addends of its subsets.
    """
    known = calibrate.known
    gaps = calibrate.own[:, OUTER] * OUTER_SIGNS if len(known) else torch.zeros(0, len(OUTER))
    addends: dict[frozenset[int], Tensor] = {}
    for group in _overlapping_devices(known):
        subsets = [value for other, value in addends.items() if other < group]
        addends[group] = gaps[sorted(group)].mean(0) - sum(subsets, torch.zeros(len(OUTER)))
    identity = calibrate.identity.tolist()
    devices = [
        Conjunction(
            frozenset().union(*(is_on_device(known[i], identity, raw=raw).within for i in group))
        )
        for group in addends
    ]
    return devices, torch.stack([*addends.values()]) if addends else gaps


def _overlapping_devices(known: Tensor) -> Iterator[frozenset[int]]:
    """Yield the sets of ``known`` devices that one row may match, smaller sets first."""
    is_near = (known[:, None] - known[None]).abs().amax(-1) < 2 * TOLERANCE if len(known) else known
    sets = [frozenset({i}) for i in range(len(known))]
    while sets:
        yield from sets
        sets = [
            group | {i}
            for group in sets
            for i in range(max(group) + 1, len(known))
            if is_near[i, sorted(group)].all()
        ]
