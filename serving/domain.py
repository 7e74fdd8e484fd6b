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


def contains(release: Release, placements: Sequence[Placement], features: Matrix) -> Mask:
    """Which placements lie inside, given their feature matrix (placements, columns)."""
    reasons = release.domain.reasons(
        features,
        [placement.device.kind for placement in placements],
        [placement.job.job.precision for placement in placements],
    )
    return np.array([not reason for reason in reasons], dtype=np.bool_)


def contains_together(release: Release, colocations: Sequence[Colocation]) -> Mask:
    """Which co-locations are of a size and on a device that jobs were measured together.

    Their members are another question. A lone job has no neighbour to know anything about.
    """
    known = [
        len(c.members) == 1
        or (len(c.members) <= release.max_members and c.device.kind in release.colocated_devices)
        for c in colocations
    ]
    return np.array(known, dtype=np.bool_)
