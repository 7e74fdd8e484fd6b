"""Recency weights: the weight of an outcome halves with every half-life of age.

Age is counted from the newest outcome, not from the clock: equal logs give equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from presage.pipelines.stages.stage import read_params
from presage.system.arrays import Array

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Recency:
    """Settings of the section ``outcomes`` of params.yaml.

    Attributes
    ----------
    half_life_days : float
        Age at which an outcome has half the weight of a current one.
    most_weight : float
        Weight of the newest outcome, relative to a row of a campaign.
    newest_runs : int
        Number of newest runs of a job in one place that determine its current values.
    """

    half_life_days: float
    most_weight: float
    newest_runs: int

    def __post_init__(self) -> None:
        for name in ("half_life_days", "most_weight"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value}, must be a finite number > 0")
        if self.newest_runs < 1:
            raise ValueError(f"newest_runs={self.newest_runs}, must be 1 or more")

    def decay(self, age_s: Array) -> Array:
        """Return 1 for age zero, halved for each half-life."""
        return np.exp2(-age_s / (self.half_life_days * DAY_S))


def read_recency() -> Recency:
    """Read the settings from params.yaml.

    Raises
    ------
    ConfigError
        The section or a key is missing, unknown, or invalid.
    """
    return read_params("outcomes", Recency, besides=["withdrawn"])


def current_medians(
    rows: pd.DataFrame, group: Sequence[str], values: Sequence[str], recency: Recency
) -> pd.DataFrame:
    """Return the median of each of ``values`` by group, from its newest rows; NaN without values.

    Without the limit, older runs would outweigh a change: after a hundred runs, for a hundred more.

    ``rows`` have a ``measured_at_s``. The order of rows does not matter.
    """
    newest = rows.groupby(list(group))["measured_at_s"].transform("max")
    age_s = (newest - rows["measured_at_s"]).to_numpy(np.float64)
    weighted = rows.assign(weight=recency.decay(age_s))
    found = {
        name: _weighted_median(_newest(weighted, list(group), name, recency), list(group), name)
        for name in values
    }
    index = rows.groupby(list(group)).size().index
    return pd.DataFrame(found, index=index)


def _newest(rows: pd.DataFrame, group: list[str], name: str, recency: Recency) -> pd.DataFrame:
    """Return the newest rows of each group with a value; ties prefer the larger value."""
    known = rows[rows[name].notna()].sort_values([*group, "measured_at_s", name])
    return known.groupby(group).tail(recency.newest_runs)


def _weighted_median(rows: pd.DataFrame, group: list[str], name: str) -> pd.Series:
    """Return the least value at which a group's cumulative weight reaches half."""
    ordered = rows.sort_values([*group, name, "weight"])
    weights = ordered.groupby(group)["weight"]
    reached = weights.cumsum() >= weights.transform("sum") / 2
    return ordered[reached].groupby(group)[name].first()
