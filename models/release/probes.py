"""Probes: what a release is asked, and known to answer, before it is served.

They travel in its manifest. A server asks them again: numbers that differ say that this machine,
or its ONNX Runtime, computes something else. It also asks a new release those of the one before
it: medians out of all proportion say that something is broken which no checksum shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from presage.features.colocation_member import SOLO_PROFILE, member_matrix
from presage.features.quantities.registry import INTERFERENCE, QUANTITIES
from presage.models.release.manifest import parse_list
from presage.system.arrays import Array, Float32s

MAX_MEMBERS = 64  # of a co-location, as in a request
ROWS_PER_DEVICE_KIND = 3  # rows of each kind of device, as far as there are

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
            "features": [_format_row(row) for row in self.features],
            "together": [_format_row(rows) for rows in self.together],
            "quantiles": {
                name: [_format_row(row) for row in found.astype(np.float32)]
                for name, found in self.quantiles.items()
            },
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Probes) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]


def parse_probes(
    content: Mapping[str, Any], columns: int, levels: int, predictors: Collection[str]
) -> Probes:
    """Return the probes of a manifest, with the recorded answers of these predictors.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It holds none of this release.
    """
    features = _parse_table(content["features"], columns).astype(np.float32)
    colocations = parse_list(content["together"], "probes.together")
    together = tuple(tuple(map(int, rows.split())) for rows in colocations)
    quantiles = {name: _parse_table(content["quantiles"][name], levels) for name in predictors}
    if max(map(len, together), default=0) > MAX_MEMBERS:
        raise ValueError(f"probes: a co-location of more than {MAX_MEMBERS} members")
    if not all(rows and min(rows) >= 0 and max(rows) < len(features) for rows in together):
        raise ValueError("probes: a co-location of rows that are not there")
    members = sum(map(len, together))
    for name, found in quantiles.items():
        rows = len(features) if QUANTITIES[name].scope == "solo" else members
        if len(found) != rows:
            raise ValueError(f"probes: {len(found)} answers of {name} to {rows} rows")
    return Probes(features, together, quantiles)


def _parse_table(lines: Any, width: int) -> Array:
    """Numbers of lines, shape (lines, width)."""
    rows = np.array([line.split() for line in parse_list(lines, "probes")], dtype=np.float64)
    table: Array = rows.reshape(len(lines), width)
    return table


def choose_probes(kinds: Sequence[str]) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Rows to ask of those on devices of these kinds, and which of them as co-locations.

    Of every kind the first, the last, and some between; a pair and all of them together.
    """
    found = np.asarray(kinds)
    chosen: list[int] = []
    together: list[tuple[int, ...]] = []
    for kind in sorted(set(kinds)):
        rows = np.flatnonzero(found == kind)
        picked = rows[
            np.unique(np.linspace(0, len(rows) - 1, ROWS_PER_DEVICE_KIND).astype(int))
        ].tolist()
        positions = tuple(range(len(chosen), len(chosen) + len(picked)))
        chosen += picked
        together += list(pairwise(positions))[:1]
        together += [positions] if len(positions) > 2 else []
    return chosen, tuple(together)


def run_probes(
    run: Run,
    predictors: Collection[str],
    features: Float32s,
    together: Sequence[Sequence[int]],
    *,
    median: int,
) -> dict[str, Array]:
    """Return the answers of predictors to probes; ``median`` is its position in the levels."""
    solo = [name for name in predictors if QUANTITIES[name].scope == "solo"]
    out = {name: run(name, {"features": features}) for name in solo}
    profile = {name: out[name][:, median] for name in SOLO_PROFILE}
    members = member_matrix(features.astype(np.float64), profile).astype(np.float32)
    slowdowns = [
        run(
            INTERFERENCE.name,
            {"members": members[np.newaxis, list(rows)], "mask": np.ones((1, len(rows)), "f4")},
        )
        for rows in together
    ]
    levels = out[SOLO_PROFILE[0]].shape[1]
    out[INTERFERENCE.name] = np.concatenate([np.empty((0, levels)), *slowdowns])
    return out


def _format_row(row: Iterable[Any]) -> str:
    """Numbers in as few digits as tell them from others of their type."""
    return " ".join(map(str, row))
