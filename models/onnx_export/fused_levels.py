"""From what the members of a stack say to one forecast: levels, ensemble, doubt, margins.

Levels are a median and gaps: by how much each other one is further out. Whatever margins do, gaps
that are at least 0 and at least the next one's towards the median are levels in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from presage.models.networks.ensemble import DOUBT
from presage.models.networks.predictors import Calibration
from presage.models.onnx_export.fused_columns import Conjunction, alike
from presage.models.training.device_effect import TOLERANCE
from presage.models.training.fit import LEVELS

MIDDLE = LEVELS.index(0.5)
OUTER = [level for level in range(len(LEVELS)) if level != MIDDLE]
SIDE = torch.tensor([1.0 if level > MIDDLE else -1.0 for level in OUTER])
# Of every level but the median, the next one towards it; itself where that is the median.
INNER = [
    OUTER.index(level - step if level - step != MIDDLE else level)
    for level, step in zip(OUTER, SIDE.int().tolist(), strict=True)
]


class FoldedLevels(nn.Module):
    """A row's median, gaps and contrasts of members -> levels, with doubt and margins.

    Attributes
    ----------
    devices : list of Conjunction
        Those that have margins of their own.
    of_median : Tensor of shape (members, outputs)
        What is asked for, of the members' medians.
    of_gaps : Tensor of shape (members, gaps, outputs)
        And of their gaps.
    shift : Tensor of shape (outputs,)
        What is asked for besides: margins of everybody.
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
        self.of_median = torch.zeros(members, outputs).double()
        self.of_median[:, 0] = 1 / members
        self.of_median[:, 1 + gaps :] = _contrasts(members)
        self.of_gaps = torch.zeros(members, gaps, outputs).double()
        self.of_gaps[:, range(gaps), range(1, 1 + gaps)] = 1 / members
        self.shift = torch.zeros(outputs).double()
        self.shift[1 : 1 + gaps] = calibrate.shift[OUTER] * SIDE
        self.devices, own = _own_margins(calibrate, raw=raw)
        side = torch.zeros(len(LEVELS), gaps)
        side[OUTER, range(gaps)] = SIDE
        self.register_buffer("own", own.T.contiguous())
        self.register_buffer("doubt", torch.ones(gaps, 1))
        self.register_buffer("side", side)
        self.register_buffer("inner", torch.tensor(INNER))

    def forward(self, asked: Tensor, own: Tensor | None) -> Tensor:
        """(outputs, rows) and which of the devices (devices, rows) -> (levels, rows)."""
        median, gaps, *contrasts = torch.split(asked, self.widths)
        for contrast in contrasts:
            differ = torch.linalg.vector_norm(contrast, dim=0, keepdim=True)
            gaps = torch.addmm(gaps, self.doubt, differ)
        if own is not None:
            gaps = torch.addmm(gaps, self.own, own)
        gaps = gaps.relu()
        for _ in range(MIDDLE - 1):
            gaps = torch.maximum(gaps, gaps.index_select(0, self.inner))
        return torch.addmm(median, self.side, gaps)


def outward() -> Tensor:
    """Which steps a gap is the sum of, (steps, gaps)."""
    between = [
        [(a - MIDDLE) * (b - MIDDLE) > 0 and abs(a - MIDDLE) <= abs(b - MIDDLE) for b in OUTER]
        for a in OUTER
    ]
    return torch.tensor(between).double()


def _contrasts(members: int) -> Tensor:
    """Directions (members, members - 1), orthogonal to the mean: their norm is the doubt.

    Helmert's, times what :func:`presage.models.networks.ensemble.combined` takes of a deviation.
    """
    out = torch.zeros(members, members - 1).double()
    for k in range(1, members):
        out[:k, k - 1], out[k, k - 1] = 1.0, -float(k)
        out[:, k - 1] *= DOUBT / math.sqrt(k * (k + 1) * (members - 1))
    return out


def _own_margins(calibrate: Calibration, *, raw: bool) -> tuple[list[Conjunction], Tensor]:
    """Devices with margins of their own, and how much further their gaps are (devices, gaps).

    A row that is of several, which are nearly alike, has the mean of theirs: each set of them is a
    device too, with what is left of that mean once those within it are counted.
    """
    known = calibrate.known
    gaps = calibrate.own[:, OUTER] * SIDE if len(known) else torch.zeros(0, len(OUTER))
    left: dict[frozenset[int], Tensor] = {}
    for some in _sets_alike(known):
        inside = [value for other, value in left.items() if other < some]
        left[some] = gaps[sorted(some)].mean(0) - sum(inside, torch.zeros(len(OUTER)))
    identity = calibrate.identity.tolist()
    devices = [
        Conjunction(frozenset().union(*(alike(known[i], identity, raw=raw).within for i in some)))
        for some in left
    ]
    return devices, torch.stack([*left.values()]) if left else gaps


def _sets_alike(known: Tensor) -> Iterator[frozenset[int]]:
    """Sets of devices (devices, columns) that one row may be all of, smaller ones first."""
    near = (known[:, None] - known[None]).abs().amax(-1) < 2 * TOLERANCE if len(known) else known
    sets = [frozenset({i}) for i in range(len(known))]
    while sets:
        yield from sets
        sets = [
            some | {i}
            for some in sets
            for i in range(max(some) + 1, len(known))
            if near[i, sorted(some)].all()
        ]
