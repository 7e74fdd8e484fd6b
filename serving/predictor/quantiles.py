"""What predictors say of many rows, as arrays; a forecast is made of it at the edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from presage.errors import InvalidJobError
from presage.features.arrays import Array, Mask

if TYPE_CHECKING:
    from presage.models.release.release import Release

JOB_QUANTITIES = {
    "compute_utilization": "fraction",
    "memory_bytes": "bytes",
    "step_time_s": "seconds",
    "runtime_s": "seconds",
}


@dataclass(frozen=True, slots=True, eq=False)
class Quantiles:
    """Of one quantity: ``values`` of shape (rows, levels), ``in_domain`` of shape (rows,)."""

    values: Array
    in_domain: Mask


@dataclass(frozen=True, slots=True, eq=False)
class ColocationQuantiles:
    """Of co-locations one after another.

    Attributes
    ----------
    slowdowns : Quantiles
        A row for each member.
    sizes : sequence of int
        Members of each co-location.
    fits, fit_probability : sequence of bool, of float
        Of each co-location, as in :class:`~presage.serving.predictor.forecasts.ColocationForecast`.
    """

    slowdowns: Quantiles
    sizes: Sequence[int]
    fits: Sequence[bool]
    fit_probability: Sequence[float]


JobQuantiles = Mapping[str, Quantiles]  # by quantity, in the order of JOB_QUANTITIES


@dataclass(frozen=True, slots=True)
class SelectedQuantiles:
    """Which of a release's quantiles a request is answered with.

    Attributes
    ----------
    coverage : float
        Of the interval.
    levels : tuple of float
        Quantiles besides.
    positions : tuple of int
        Of the median, the interval's ends and those besides, among the release's levels.
    """

    coverage: float
    levels: tuple[float, ...]
    positions: tuple[int, ...]


def select_quantiles(
    release: Release, coverage: float, levels: Sequence[float] = ()
) -> SelectedQuantiles:
    """What a release answers such a request with.

    Raises
    ------
    InvalidJobError
        It has no such interval or quantile; names those it has.
    """
    low, high = release.interval_levels(coverage)
    unknown = [i for i, level in enumerate(levels) if level not in release.levels]
    if unknown:
        raise InvalidJobError(
            f"levels[{unknown[0]}] is no quantile of release {release.release_id}; ask for some "
            f"of {', '.join(f'{level:g}' for level in release.levels)}"
        )
    positions = (release.levels.index(0.5), low, high, *map(release.levels.index, levels))
    return SelectedQuantiles(coverage, tuple(levels), positions)
