"""From what the members of a stack say to one forecast: levels, ensemble, doubt, margins.

Levels are a median and gaps: by how much each other one is further out. Whatever margins do, gaps
that are at least 0 and at least the next one's towards the median are levels in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from presage.models.device_effect import TOLERANCE
from presage.models.ensemble import DOUBT
from presage.models.fit import LEVELS, ScalarStack
from presage.models.folded_columns import Conjunction, alike
from presage.models.folded_network import MIDDLE, OUTER
from presage.models.predictors import Calibration

SIDE = torch.tensor([1.0 if level > MIDDLE else -1.0 for level in OUTER])
# Of every level but the median, the next one towards it; itself where that is the median.
INNER = [
    OUTER.index(level - step if level - step != MIDDLE else level)
    for level, step in zip(OUTER, SIDE.int().tolist(), strict=True)
]


class FoldedLevels(nn.Module):
    """Steps and medians of members, and logarithms of sums -> levels (rows, levels).

    Attributes
    ----------
    devices : list of Conjunction
        Those that have margins of their own.
    """

    steps: Tensor
    bias: Tensor
    parts: Tensor
    own: Tensor
    doubt: Tensor
    inner: Tensor
    side: Tensor

    def __init__(self, stack: ScalarStack, calibrate: Calibration, combinations: int) -> None:
        super().__init__()
        scale, mean = (t.flatten().double() for t in (stack.y_scale, stack.y_mean))
        members, gaps = len(scale), len(OUTER)
        of_median = torch.cat([torch.full((members, 1), 1 / members), _contrasts(members)], 1)
        of_median = of_median.double()  # (members, 1 + contrasts)
        steps = torch.zeros(members, gaps + 2, members + gaps).double()
        where = [0, *range(1 + gaps, members + gaps)]  # in a row: median, gaps, contrasts
        steps[:, :gaps, 1 : 1 + gaps] = _outward() * scale[:, None, None] / members
        steps[:, gaps, where] = of_median * scale[:, None]
        steps[:, gaps + 1, where] = -of_median * scale[:, None]
        bias = torch.zeros(members + gaps).double()
        bias[where] = mean @ of_median
        bias[1 : 1 + gaps] = calibrate.shift[OUTER] * SIDE
        parts = torch.zeros(members, members + gaps).double()
        parts[:, where] = of_median
        self.devices, own = _own_margins(calibrate)
        self.widths = [1, gaps, members - 1] if members > 1 else [1, gaps]
        sign = torch.zeros(gaps, len(LEVELS))
        sign[range(gaps), OUTER] = SIDE
        buffers = {
            "steps": steps.flatten(0, 1).T,
            "bias": bias[:, None],
            "parts": parts.repeat(combinations, 1).T,
            "own": own.T,
            "doubt": torch.ones(gaps, 1),
            "side": sign.T,
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.float().contiguous())
        self.register_buffer("inner", torch.tensor(INNER))

    def forward(self, steps: Tensor, sums: Tensor | None, own: Tensor | None) -> Tensor:
        """(members x (steps + 2), rows), (combinations x members, rows), (devices, rows)."""
        whole = torch.addmm(self.bias, self.steps, steps)
        if sums is not None:
            whole = torch.addmm(whole, self.parts, sums)
        median, gaps, *contrasts = torch.split(whole, self.widths)
        for contrast in contrasts:
            differ = torch.linalg.vector_norm(contrast, dim=0, keepdim=True)
            gaps = torch.addmm(gaps, self.doubt, differ)
        if own is not None:
            gaps = torch.addmm(gaps, self.own, own)
        gaps = gaps.relu()
        for _ in range(MIDDLE - 1):
            gaps = torch.maximum(gaps, gaps.index_select(0, self.inner))
        return torch.addmm(median, self.side, gaps)


def _outward() -> Tensor:
    """Which steps a gap is the sum of, (steps, gaps)."""
    between = [
        [(a - MIDDLE) * (b - MIDDLE) > 0 and abs(a - MIDDLE) <= abs(b - MIDDLE) for b in OUTER]
        for a in OUTER
    ]
    return torch.tensor(between).double()


def _contrasts(members: int) -> Tensor:
    """Directions (members, members - 1), orthogonal to the mean: their norm is the doubt.

    Helmert's, times what :func:`presage.models.ensemble.combined` takes of a deviation.
    """
    out = torch.zeros(members, members - 1)
    for k in range(1, members):
        out[:k, k - 1], out[k, k - 1] = 1.0, -float(k)
        out[:, k - 1] *= DOUBT / math.sqrt(k * (k + 1) * (members - 1))
    return out


def _own_margins(calibrate: Calibration) -> tuple[list[Conjunction], Tensor]:
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
        Conjunction(frozenset().union(*(alike(known[i], identity).within for i in some)))
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
