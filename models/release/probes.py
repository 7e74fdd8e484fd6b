"""Probes: inputs with recorded outputs, to test a release before it is served.

They are part of the manifest. A server runs them again: different outputs mean that the machine or
its ONNX Runtime computes differently. A server also runs a new release on the probes of the current
one: medians that change by a large factor reveal faults that no checksum shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from presage.features.colocation_member import SOLO_PROFILE, member_matrix
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES
from presage.models.release.manifest import parse_list
from presage.system.arrays import Array, Float32s

MAX_MEMBERS = 64  # of a co-location, as in a request
ROWS_PER_DEVICE_KIND = 3  # fewer if there are fewer rows

# A predictor's name and inputs, as in models/release/release.py -> quantiles (rows or members,
# levels).
Run = Callable[[str, Mapping[str, Float32s]], Array]


@dataclass(frozen=True, eq=False)
class Probes:
    """Inputs and recorded outputs.

    Attributes
    ----------
    features : ndarray of shape (rows, columns of the full set)
    colocations : tuple of tuple of int
        Rows that form co-locations.
    quantiles : mapping of str to ndarray
        Outputs by predictor: (rows, levels); for interference (members of all co-locations,
        levels).
    """

    features: Float32s
    colocations: tuple[tuple[int, ...], ...]
    quantiles: Mapping[str, Array]

    def as_json(self) -> dict[str, Any]:
        """Return the probes as the manifest stores them."""
        return {
            "features": [_format_row(row) for row in self.features],
            "together": [_format_row(rows) for rows in self.colocations],
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
    """Return the probes of a manifest, with the recorded outputs of these predictors.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        The content is malformed.
    """
    features = _parse_table(content["features"], columns).astype(np.float32)
    lines = parse_list(content["together"], "probes.together")
    colocations = tuple(tuple(map(int, line.split())) for line in lines)
    quantiles = {name: _parse_table(content["quantiles"][name], levels) for name in predictors}
    if max(map(len, colocations), default=0) > MAX_MEMBERS:
        raise ValueError(f"probes: a co-location has more than {MAX_MEMBERS} members")
    if not all(rows and min(rows) >= 0 and max(rows) < len(features) for rows in colocations):
        raise ValueError("probes: a co-location has a row that does not exist")
    members = sum(map(len, colocations))
    for name, found in quantiles.items():
        rows = len(features) if QUANTITIES[name].scope == "solo" else members
        if len(found) != rows:
            raise ValueError(f"probes: {len(found)} outputs of {name} for {rows} rows")
    return Probes(features, colocations, quantiles)


def _parse_table(lines: Any, width: int) -> Array:
    """Return the numbers of text lines, shape (lines, width)."""
    rows = np.array([line.split() for line in parse_list(lines, "probes")], dtype=np.float64)
    table: Array = rows.reshape(len(lines), width)
    return table


def choose_probes(kinds: Sequence[str]) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Return rows to use as probes, given their device kinds, and co-locations among them.

    Rows of each kind are the first, the last and some between. Co-locations are a pair, and all
    rows of the kind.
    """
    kind_of_row = np.asarray(kinds)
    chosen: list[int] = []
    colocations: list[tuple[int, ...]] = []
    for kind in sorted(set(kinds)):
        rows = np.flatnonzero(kind_of_row == kind)
        picked = rows[
            np.unique(np.linspace(0, len(rows) - 1, ROWS_PER_DEVICE_KIND).astype(int))
        ].tolist()
        positions = tuple(range(len(chosen), len(chosen) + len(picked)))
        chosen += picked
        colocations += list(pairwise(positions))[:1]
        colocations += [positions] if len(positions) > 2 else []
    return chosen, tuple(colocations)


def run_probes(
    run: Run,
    predictors: Collection[str],
    features: Float32s,
    colocations: Sequence[Sequence[int]],
    *,
    median: int,
) -> dict[str, Array]:
    """Return the outputs of predictors for probes; ``median`` is its position in the levels."""
    solo = [name for name in predictors if QUANTITIES[name].scope == "solo"]
    out = {name: run(name, {"features": features}) for name in solo}
    profile = {name: out[name][:, median] for name in SOLO_PROFILE}
    members = member_matrix(features.astype(np.float64), profile).astype(np.float32)
    slowdowns = [
        run(
            INTERFERENCE.name,
            {"members": members[np.newaxis, list(rows)], "mask": np.ones((1, len(rows)), "f4")},
        )
        for rows in colocations
    ]
    levels = out[SOLO_PROFILE[0]].shape[1]
    out[INTERFERENCE.name] = np.concatenate([np.empty((0, levels)), *slowdowns])
    return out


def _format_row(row: Iterable[Any]) -> str:
    """Return numbers as text, in the fewest digits that identify them."""
    return " ".join(map(str, row))
