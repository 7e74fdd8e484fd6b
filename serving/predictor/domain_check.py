"""Where a release may vouch for its intervals: near what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.features.arrays import Ints, Mask
from presage.models.release.release import Release
from presage.serving.predictor.feature_rows import FeatureRows


def contains(release: Release, rows: FeatureRows) -> dict[str, Mask]:
    """Which rows each predictor knows the like of."""
    alike = release.contains(rows.features, rows.precision)
    trained = release.trained_devices
    known = np.array([[kind in kinds for kind in rows.kinds] for kinds in trained.values()])
    return dict(zip(trained, known.take(rows.device, axis=1) & alike, strict=True))


def are_colocations_in_domain(release: Release, kinds: Sequence[str], sizes: Ints) -> Mask:
    """Which co-locations are of a size and on a device that jobs were measured together.

    Their members are another question. A lone job has no neighbour to know anything about.

    Parameters
    ----------
    kinds : sequence of str
        Of each co-location's device.
    sizes : ndarray of int, shape (co-locations,)
    """
    trained = release.trained_devices["interference"]
    most = {kind: release.max_members[release.class_of(kind)] if kind in trained else 1
            for kind in set(kinds)}  # fmt: skip
    return sizes <= np.array([most[kind] for kind in kinds])
