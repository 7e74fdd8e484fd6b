"""Quantiles of many rows as arrays; forecasts are created from them at the API boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from presage.errors import InvalidJobError
from presage.system.arrays import Array, Mask

if TYPE_CHECKING:
    from presage.models.release.release import Release
    from presage.serving.predictor.corrections import Corrections


@dataclass(frozen=True, slots=True, eq=False)
class Quantiles:
    """Quantiles of one quantity.

    Attributes
    ----------
    values : ndarray of shape (rows, levels)
    in_domain : ndarray of bool, shape (rows,)
    domain_error_ratio : ndarray of shape (rows,), or float
        As in :class:`~presage.features.forecast.Forecast`.
    corrections : Corrections, optional
        Offsets that the values contain; None without any.
    """

    values: Array
    in_domain: Mask
    domain_error_ratio: Array | float = 0.0
    corrections: Corrections | None = None

    def domain_error_ratios(self) -> list[float]:
        """Return the ratio of each row."""
        if isinstance(self.domain_error_ratio, float):
            return [self.domain_error_ratio] * len(self.in_domain)
        ratios: list[float] = self.domain_error_ratio.tolist()
        return ratios


@dataclass(frozen=True, slots=True, eq=False)
class ColocationQuantiles:
    """Quantiles and memory fit of consecutive co-locations.

    Attributes
    ----------
    slowdowns : Quantiles
        One row per member.
    sizes : sequence of int
        Members of each co-location.
    fits, fit_probability : sequence of bool, sequence of float
        As in :class:`~presage.serving.predictor.prediction_backend.ColocationForecast`.
    """

    slowdowns: Quantiles
    sizes: Sequence[int]
    fits: Sequence[bool]
    fit_probability: Sequence[float]


# By forecast field, in the order of presage.features.quantities.quantity_registry.job_quantities().
JobQuantiles = Mapping[str, Quantiles]


@dataclass(frozen=True, slots=True)
class SelectedQuantiles:
    """Quantiles of a release that a response contains.

    Attributes
    ----------
    coverage : float
        Coverage of the interval.
    levels : tuple of float
        Levels of further quantiles.
    positions : tuple of int
        Positions of the median, the interval ends and the further quantiles among the release's
        levels.
    """

    coverage: float
    levels: tuple[float, ...]
    positions: tuple[int, ...]


def select_quantiles(
    release: Release, coverage: float, levels: Sequence[float] = ()
) -> SelectedQuantiles:
    """Return the quantiles for a coverage and further levels.

    Raises
    ------
    InvalidJobError
        The release has no such interval or quantile; names the available ones.
    """
    low, high = release.interval_levels(coverage)
    unknown = [i for i, level in enumerate(levels) if level not in release.levels]
    if unknown:
        raise InvalidJobError(
            f"levels[{unknown[0]}] is not a quantile of release {release.release_id}; use some of "
            f"{', '.join(f'{level:g}' for level in release.levels)}"
        )
    positions = (release.levels.index(0.5), low, high, *map(release.levels.index, levels))
    return SelectedQuantiles(coverage, tuple(levels), positions)
