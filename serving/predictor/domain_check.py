"""Domain check: what of a request is new to a release, and whether it is in domain.

Novelty codes are sums of powers of two, one for each of
:data:`presage.models.calibration.margins.NOVELTIES` in order, and one for jobs out of domain: 0 if
nothing is new. A job is new if it is not near the training jobs; if it is even farther from them,
it is out of domain. A new framework release widens intervals, but is in domain: hardly any user has
exactly a release of the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from presage.features.columns.schema import columns
from presage.features.device.device_class import COMPUTE_CAPABILITY, DEVICE_CLASSES, GPU
from presage.features.job.framework_version import FRAMEWORK_RELEASE
from presage.features.quantities.quantity_registry import INTERFERENCE
from presage.models.drift.drift_test import ERROR_RATIO, Guarantees
from presage.models.release.release import Release
from presage.serving.predictor.feature_rows import FeatureRows
from presage.system.arrays import Array, FloatMatrix, Ints, Mask

NEW_JOB, NEW_DEVICE, NEW_RELEASE, OUT_OF_DOMAIN = 1, 2, 4, 8
# Bits that widen intervals; OUT_OF_DOMAIN alone does not, and never comes without NEW_JOB.
WIDENING = NEW_JOB | NEW_DEVICE | NEW_RELEASE
_FRAMEWORK_RELEASE = columns("full").index(FRAMEWORK_RELEASE)


def novelty_codes(release: Release, rows: FeatureRows) -> dict[str, Ints]:
    """Return by predictor what is new in each row, codes of shape (rows,)."""
    in_domain, near = release.classify(rows.features, rows.precision)
    common = NEW_JOB * ~near + OUT_OF_DOMAIN * ~in_domain
    common += NEW_RELEASE * _is_new_release(release, rows.features)
    trained = release.trained_devices
    unknown = np.array([[kind not in kinds for kind in rows.kinds] for kinds in trained.values()])
    codes = NEW_DEVICE * unknown.take(rows.device, axis=1) + common
    return dict(zip(trained, codes, strict=True))


def is_in_domain(codes: Ints) -> Mask:
    """Return whether each row is in domain, and its device is not new."""
    inside: Mask = (codes & (OUT_OF_DOMAIN | NEW_DEVICE)) == 0
    return inside


def _is_new_release(release: Release, features: FloatMatrix) -> Mask:
    """Return which rows have a framework release that its device class was not measured with."""
    out = np.zeros(len(features), dtype=np.bool_)
    if not release.trained_releases:  # a release of an older version
        return out
    on_gpu = features[:, COMPUTE_CAPABILITY] > 0
    releases = features[:, _FRAMEWORK_RELEASE, np.newaxis]
    for name, known in release.trained_releases.items():
        is_known = (releases == _numbers(known)).any(axis=1)
        out |= (on_gpu == (name == GPU)) & ~is_known
    return out


@lru_cache
def _numbers(known: frozenset[float]) -> Array:
    return np.array(sorted(known))


def colocation_codes(release: Release, kinds: Sequence[str], sizes: Ints) -> Ints:
    """Return what is new in co-locations besides their members: the device, or their number.

    Nothing is in a co-location of one job.

    Parameters
    ----------
    kinds : sequence of str
        Device kind of each co-location.
    sizes : ndarray of int, shape (co-locations,)
        Members of each co-location.
    """
    trained = release.trained_devices[INTERFERENCE.name]
    is_new = np.array([kind not in trained for kind in kinds])
    most = {
        kind: release.max_members[release.find_device_class(kind)]
        for kind in set(kinds)
        if kind in trained
    }
    is_larger = sizes > np.array([most.get(kind, np.inf) for kind in kinds])
    codes: Ints = NEW_DEVICE * is_new + (NEW_JOB | OUT_OF_DOMAIN) * is_larger
    codes *= sizes > 1
    return codes


def known_ratios(ratios: Array, codes: Ints, classes: Ints) -> Array:
    """Return the ratio of errors out of domain of each row, as
    :class:`~presage.features.forecast.Forecast` defines it.

    It was measured for jobs, not for new devices, whose ratio is unknown.

    Parameters
    ----------
    ratios : ndarray of shape (..., device classes)
        From :func:`domain_error_ratios`.
    codes : ndarray of int, shape (..., rows)
    classes : ndarray of int, shape (rows,)
        Positions in ``DEVICE_CLASSES``.
    """
    found: Array = ratios.take(classes, axis=-1) * ((codes & NEW_DEVICE) == 0)
    return found


def domain_error_ratios(guarantees: Guarantees, predictor: str) -> Array:
    """Return the ratio of errors out of domain to those in domain, by device class; 0 if unknown.

    It is that of :func:`presage.pipelines.evaluation.evaluation_tables.calibration_guarantee`.
    """
    by_slice = guarantees.get(predictor, {})
    return np.array(
        [by_slice.get(f"class {name}", {}).get(ERROR_RATIO, 0.0) for name in DEVICE_CLASSES]
    )
