"""Domain check: whether predictions are close enough to the training data of a release."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.features.quantities.quantity_registry import INTERFERENCE
from presage.models.release.release import Release
from presage.serving.predictor.feature_rows import FeatureRows
from presage.system.arrays import Ints, Mask


def contains(release: Release, rows: FeatureRows) -> dict[str, Mask]:
    """Return by predictor which rows are in domain, each of shape (rows,)."""
    inside = release.contains(rows.features, rows.precision)
    trained = release.trained_devices
    known = np.array([[kind in kinds for kind in rows.kinds] for kinds in trained.values()])
    return dict(zip(trained, known.take(rows.device, axis=1) & inside, strict=True))


def are_colocations_in_domain(release: Release, kinds: Sequence[str], sizes: Ints) -> Mask:
    """Return which co-locations have a device and a size that were measured.

    Members are checked by :func:`contains`. A co-location of one job is always in domain here.

    Parameters
    ----------
    kinds : sequence of str
        Device kind of each co-location.
    sizes : ndarray of int, shape (co-locations,)
        Members of each co-location.
    """
    trained = release.trained_devices[INTERFERENCE.name]
    most = {kind: release.max_members[release.find_device_class(kind)] if kind in trained else 1
            for kind in set(kinds)}  # fmt: skip
    return sizes <= np.array([most[kind] for kind in kinds])
