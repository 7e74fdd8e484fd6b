"""Where a release may vouch for its intervals: near what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presage.features.colocation import Colocation
from presage.features.placement import Placement
from presage.features.schema import Matrix
from presage.models.release import Release

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def contains(
    release: Release, placements: Sequence[Placement], features: Matrix
) -> dict[str, Mask]:
    """Which placements each predictor knows the like of, by their matrix (placements, columns)."""
    reasons = release.strangers(features, [p.job.job.precision for p in placements])
    alike = np.array([not reason for reason in reasons], dtype=np.bool_)
    return {
        predictor: alike & np.array([p.device.kind in kinds for p in placements], dtype=np.bool_)
        for predictor, kinds in release.trained_devices.items()
    }


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
