"""Interval widening by what is new in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.margins import NOVELTIES, combine_widenings
from presage.models.release.release import Release
from presage.serving.predictor.corrections import Corrections
from presage.serving.predictor.domain_check import WIDENING
from presage.system.arrays import Array, Ints, Mask


class Widening:
    """Interval widening of several predictors of a release at once.

    Parameters
    ----------
    predictors : sequence of str
        Names of quantities; the first axis of all arrays.
    """

    def __init__(self, release: Release, predictors: Sequence[str]) -> None:
        margins = [release.novelty_margins[name] for name in predictors]
        self._tables = np.array(
            [[widening_table(m, of, release.levels) for of in DEVICE_CLASSES] for m in margins]
        )
        quantities = [QUANTITIES[name] for name in predictors]
        self._is_fraction = np.array([[[not one.is_scale]] for one in quantities])
        self._minimum = np.array([[[one.minimum]] for one in quantities])
        self._position = np.arange(len(predictors))[:, np.newaxis]
        self._median = release.levels.index(0.5)

    def widened(
        self,
        quantiles: Array,
        codes: Ints,
        classes: Ints,
        offsets: Sequence[Corrections | None] = (),
    ) -> Array:
        """Return quantiles with intervals widened by what is new in each row.

        The less is new after the runs behind the offsets, the less intervals are widened.

        Parameters
        ----------
        quantiles : ndarray of shape (predictors, rows, levels)
        codes : ndarray of int, shape (predictors, rows)
            Novelty codes.
        classes : ndarray of int, shape (rows,)
            Positions in ``DEVICE_CLASSES``.
        offsets : sequence of Corrections or None, by predictor
        """
        if not np.count_nonzero(codes):
            return quantiles
        novelty = codes & WIDENING
        factors: Array = self._tables[self._position, classes, novelty]
        for i, known in enumerate(offsets):
            if known is not None:
                left = known.job_left, known.device_left, known.device_left
                factors[i] = narrowed_factors(self._tables[i, classes], novelty[i], left)
        out = widen(quantiles, factors, self._median, odds=self._is_fraction)
        np.maximum(out, self._minimum, out=out)
        return out


def widening_factors(margins: Mapping[float, float], levels: Sequence[float]) -> Array:
    """Return the factor of each quantile, shape (levels,): below 1 below the median.

    ``margins`` are by lower level and at least 0, in the logarithm of a scale or in log-odds.
    """
    factors = np.ones(len(levels))
    for level, margin in margins.items():
        low = levels.index(level)
        factors[low], factors[len(levels) - 1 - low] = np.exp(-margin), np.exp(margin)
    return factors


def widening_table(
    margins: Mapping[str, Mapping[str, Mapping[float, float]]],
    device_class: str,
    levels: Sequence[float],
) -> Array:
    """Return the factors of each quantile by novelty code, shape (codes, levels).

    ``margins`` are by novelty, device class and lower level. Codes are those of
    :mod:`presage.serving.predictor.domain_check` that widen intervals.
    """
    rows = []
    for code in range(1 << len(NOVELTIES)):
        names = [name for bit, name in enumerate(NOVELTIES) if code >> bit & 1]
        new = [margins.get(name, {}).get(device_class, {}) for name in names]
        rows.append(widening_factors(combine_widenings(new), levels))
    return np.array(rows)


def narrowed_factors(tables: Array, novelty: Ints, left: Sequence[Array]) -> Array:
    """Return factors of each quantile where a part of what is new has become known.

    Parameters
    ----------
    tables : ndarray of shape (rows, codes, levels)
        Factors by novelty code, as :func:`widening_table` returns them.
    novelty : ndarray of int, shape (rows,)
        Codes.
    left : sequence of ndarray of shape (rows,)
        By novelty, the part of its margin that remains, 0 to 1.

    Returns
    -------
    ndarray of shape (rows, levels)
        Of several novelties, the largest remaining margin counts.
    """
    margins = np.zeros((len(novelty), tables.shape[2]))
    for bit, part in enumerate(left):
        own = np.log(tables[:, 1 << bit]) * (part * (novelty >> bit & 1))[:, None]
        margins = np.where(np.abs(own) > np.abs(margins), own, margins)
    return np.asarray(np.exp(margins))


def widen(quantiles: Array, factors: Array, middle: int, *, odds: bool | Mask) -> Array:
    """Return intervals with their ends moved away from the median, in the space of training.

    Factors of 1 change nothing, not even by rounding.

    Parameters
    ----------
    quantiles : ndarray of shape (..., levels)
        Quantiles in their unit.
    factors : ndarray of shape (..., levels)
        Factors from :func:`widening_factors`.
    middle : int
        Position of the median.
    odds : bool, or ndarray of bool that broadcasts to the quantiles
        Whether the quantity is a fraction, whose factors apply to odds.
    """
    out = quantiles * factors
    np.divide(out, 1 + (out - quantiles), out=out, where=odds)
    # An outer end may move less than an inner one; keep it outside.
    low, high = out[..., middle::-1], out[..., middle:]
    np.minimum.accumulate(low, axis=-1, out=low)
    np.maximum.accumulate(high, axis=-1, out=high)
    return out
