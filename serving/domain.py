"""Where a release may vouch for its intervals: near what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presage.features.colocation import Colocation
from presage.features.errors import ReleaseError
from presage.features.placement import Placement
from presage.features.schema import FEATURE_SETS
from presage.models.release import Release

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# Part of a column's trained range by which it is widened at either end, as the model sees the
# column (most are logarithms). The extremes of a sample lie inside those of what it was drawn
# from, and a job a hair larger than the largest one measured is no stranger.
MARGIN = 0.05
# For a column that was constant in training: what float arithmetic may put between equal values.
ROUNDING = 1e-6


class Domain:
    """What a release learnt from: a box of feature values, devices, precisions, co-locations."""

    def __init__(self, release: Release) -> None:
        definition = FEATURE_SETS["full"]
        if missing := [c.name for c in definition if c.name not in release.domain]:
            raise ReleaseError(
                f"{release.folder}: release.json has no training range of {missing[0]!r} "
                f"({len(missing)} of {len(definition)} missing); train it again"
            )
        self._is_log = np.array([c.log_offset is not None for c in definition])
        self._offset = np.array([c.log_offset or 0.0 for c in definition])
        bounds = np.array([release.domain[c.name] for c in definition], dtype=np.float64)
        low, high = self._as_seen(bounds.T)
        slack = MARGIN * (high - low) + ROUNDING
        self._low, self._high = low - slack, high + slack
        self._trained_devices = release.trained_devices
        self._precisions = release.precisions
        self._colocated_devices = release.colocated_devices
        self._max_members = release.max_members

    def contains(self, placements: Sequence[Placement], features: Array) -> Mask:
        """Which placements lie inside, given their feature matrix (placements, columns)."""
        seen = self._as_seen(features)
        inside: Mask = ((seen >= self._low) & (seen <= self._high)).all(axis=1)
        known = [
            p.device.kind in self._trained_devices
            and p.job.job.precision in self._precisions
            and all(row.kind != "Other" for row in p.job.op_stats)
            for p in placements
        ]
        return inside & np.array(known, dtype=np.bool_)

    def contains_together(self, colocations: Sequence[Colocation]) -> Mask:
        """Which co-locations are of a size and on a device that jobs were measured together.

        Their members are another question. A lone job has no neighbour to know anything about.
        """
        known = [
            len(c.members) == 1
            or (len(c.members) <= self._max_members and c.device.kind in self._colocated_devices)
            for c in colocations
        ]
        return np.array(known, dtype=np.bool_)

    def _as_seen(self, values: Array) -> Array:
        """Columns as the models see them: logarithms of those that are scales."""
        logs = np.log(np.where(self._is_log, values + self._offset, 1.0))
        return np.where(self._is_log, logs, values)
