"""Probes: what a release is asked, and known to answer, before it is served.

They travel in its manifest. A server asks them again: numbers that differ say that this machine,
or its ONNX Runtime, computes something else. It also asks a new release those of the one before
it: medians out of all proportion say that something is broken which no checksum shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from presage.features.colocation_member import member_matrix
from presage.models.release.manifest import entries
from presage.system.arrays import Array, Float32s

SOLO = ("compute_utilization", "memory", "step_time")  # in the order of SOLO_PROFILE
MOST_MEMBERS = 64  # of a co-location, as in a request
OF_A_DEVICE = 3  # rows of each kind of device, as far as there are

# A predictor's name and inputs, as in models/release/release.py -> quantiles (rows or members,
# levels).
Run = Callable[[str, Mapping[str, Float32s]], Array]


@dataclass(frozen=True, eq=False)
class Probes:
    """Questions and their answers.

    Attributes
    ----------
    features : ndarray of shape (rows, columns of the full set)
    together : tuple of tuple of int
        Rows that are asked as members of one co-location.
    quantiles : mapping of str to ndarray
        By predictor: (rows, levels), of interference (members of all co-locations, levels).
    """

    features: Float32s
    together: tuple[tuple[int, ...], ...]
    quantiles: Mapping[str, Array]

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "features": [_line(row) for row in self.features],
            "together": [_line(rows) for rows in self.together],
            "quantiles": {
                name: [_line(row) for row in found.astype(np.float32)]
                for name, found in self.quantiles.items()
            },
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Probes) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]


def read_probes(content: Mapping[str, Any], columns: int, levels: int) -> Probes:
    """The probes that a manifest holds.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It holds none of this release.
    """
    features = _table(content["features"], columns).astype(np.float32)
    colocations = entries(content["together"], "probes.together")
    together = tuple(tuple(map(int, rows.split())) for rows in colocations)
    quantiles = {
        name: _table(content["quantiles"][name], levels) for name in (*SOLO, "interference")
    }
    if max(map(len, together), default=0) > MOST_MEMBERS:
        raise ValueError(f"probes: a co-location of more than {MOST_MEMBERS} members")
    if not all(rows and min(rows) >= 0 and max(rows) < len(features) for rows in together):
        raise ValueError("probes: a co-location of rows that are not there")
    asked = dict.fromkeys(SOLO, len(features)) | {"interference": sum(map(len, together))}
    for name, rows in asked.items():
        if len(quantiles[name]) != rows:
            raise ValueError(f"probes: {len(quantiles[name])} answers of {name} to {rows} rows")
    return Probes(features, together, quantiles)


def _table(lines: Any, width: int) -> Array:
    """Numbers of lines, shape (lines, width)."""
    rows = np.array([line.split() for line in entries(lines, "probes")], dtype=np.float64)
    table: Array = rows.reshape(len(lines), width)
    return table


def choose(kinds: Sequence[str]) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Rows to ask of those on devices of these kinds, and which of them as co-locations.

    Of every kind the first, the last, and some between; a pair and all of them together.
    """
    found = np.asarray(kinds)
    chosen: list[int] = []
    together: list[tuple[int, ...]] = []
    for kind in sorted(set(kinds)):
        rows = np.flatnonzero(found == kind)
        picked = rows[np.unique(np.linspace(0, len(rows) - 1, OF_A_DEVICE).astype(int))].tolist()
        positions = tuple(range(len(chosen), len(chosen) + len(picked)))
        chosen += picked
        together += list(pairwise(positions))[:1]
        together += [positions] if len(positions) > 2 else []
    return chosen, tuple(together)


def answers(
    run: Run, features: Float32s, together: Sequence[Sequence[int]], *, median: int
) -> dict[str, Array]:
    """What predictors say of probes; ``median`` is its position among the levels."""
    out = {name: run(name, {"features": features}) for name in SOLO}
    alone = np.column_stack([out[name][:, median] for name in SOLO])
    members = member_matrix(features.astype(np.float64), alone).astype(np.float32)
    slowdowns = [
        run(
            "interference",
            {"members": members[np.newaxis, list(rows)], "mask": np.ones((1, len(rows)), "f4")},
        )
        for rows in together
    ]
    levels = out["memory"].shape[1]
    out["interference"] = np.concatenate([np.empty((0, levels)), *slowdowns])
    return out


def _line(row: Iterable[Any]) -> str:
    """Numbers in as few digits as tell them from others of their type."""
    return " ".join(map(str, row))
