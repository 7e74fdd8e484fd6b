"""What is newer counts for more: half as much for every half-life of age.

Age is counted from the newest outcome, never from the clock: equal logs give equal weights.
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
    """The section ``outcomes`` of params.yaml.

    Attributes
    ----------
    half_life_days : float
        Age at which an outcome counts half of what it would today.
    most_weight : float
        What the newest outcome counts, where a row of a campaign counts 1.
    newest_runs : int
        Of a job in one place, the runs that say what it does now.
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
        """1 for what is new, half of it for each half-life."""
        return np.exp2(-age_s / (self.half_life_days * DAY_S))


def read_recency() -> Recency:
    """As params.yaml has it.

    Raises
    ------
    ConfigError
        The section or a key is missing, unknown, or of no use.
    """
    return read_params("outcomes", Recency, besides=["withdrawn"])


def current_medians(
    rows: pd.DataFrame, group: Sequence[str], values: Sequence[str], recency: Recency
) -> pd.DataFrame:
    """Median of each of ``values`` by group, of its newest rows alone; NaN where none tells.

    Older runs would outvote what has changed since: after a hundred runs, for a hundred more.

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
    """Of each group the newest rows that tell; of equal age those of the larger value."""
    told = rows[rows[name].notna()].sort_values([*group, "measured_at_s", name])
    return told.groupby(group).tail(recency.newest_runs)


def _weighted_median(rows: pd.DataFrame, group: list[str], name: str) -> pd.Series:
    """The least value that, with those below it, has half of its group's weight."""
    told = rows.sort_values([*group, name, "weight"])
    weights = told.groupby(group)["weight"]
    reached = weights.cumsum() >= weights.transform("sum") / 2
    return told[reached].groupby(group)[name].first()
