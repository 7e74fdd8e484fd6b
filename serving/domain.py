"""Where a release may vouch for its intervals: near what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.features.arrays import Mask, Matrix
from presage.features.colocation import Colocation
from presage.features.placement_table import PlacementTable
from presage.models.release import Release


def contains(release: Release, rows: PlacementTable, features: Matrix) -> dict[str, Mask]:
    """Which placements each predictor knows the like of, by their matrix (placements, columns)."""
    alike = release.contains(features, rows.jobs.precisions.take(rows.job))
    out = {}
    for predictor, kinds in release.trained_devices.items():
        trained = np.array([kind in kinds for kind in rows.devices.kinds], dtype=np.bool_)
        out[predictor] = alike & trained.take(rows.device)
    return out


def contains_together(release: Release, colocations: Sequence[Colocation]) -> Mask:
    """Which co-locations are of a size and on a device that jobs were measured together.

    Their members are another question. A lone job has no neighbour to know anything about.
    """
    known = [
        len(c.members) == 1
        or (
            c.device.kind in release.trained_devices["interference"]
            and len(c.members) <= release.max_members[release.class_of(c.device.kind)]
        )
        for c in colocations
    ]
    return np.array(known, dtype=np.bool_)
