"""The forecasts that were furthest off, and what the numbers tell of why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from presage.features.quantities.registry import COMPUTE_UTILIZATION, QUANTITIES, STEP_TIME
from presage.pipelines.evaluation.evaluation_tables import OUT_OF_DOMAIN
from presage.system.units import quantity

# Forecasts closer than this say that Presage could not tell two rows apart.
SAME_FORECAST = 1.05
# Measurements further apart than this cannot both be met.
UNLIKE = 1.25
# Fewer rows than this do not show how a family is forecast.
ENOUGH = 3
# Of a row's own error, on a logarithmic scale: from here on its family shares it.
SHARED = 1 / 3

# What else is known of the same run: a job that something disturbs is slower, and less busy.
RUN = ["job_id", "device_kind", "machine", "campaign", "split"]
SAME_RUN = {
    STEP_TIME.name: COMPUTE_UTILIZATION.name,
    COMPUTE_UTILIZATION.name: STEP_TIME.name,
}


def worst_rows(
    judged: Mapping[str, pd.DataFrame], predictor: str, *, count: int = 10
) -> pd.DataFrame:
    """Rows of each split that were furthest off, worst first, with ``inside`` and ``why``.

    Far off is by how many times, not by what share: a job that takes ten times as long as forecast
    (-90 %) is worse than one that takes half as long (+100 %).

    Parameters
    ----------
    judged : mapping of str to DataFrame
        Rows of every predictor: what one measured of a run may explain another's error.
    """
    parts = []
    for split, rows in judged[predictor].groupby("split", sort=True):
        far = _times_off(rows["predicted"], rows["measured"])
        order = far.sort_values(ascending=False, kind="stable").index[:count]
        found: pd.DataFrame = rows.loc[order]
        partner = judged.get(SAME_RUN.get(predictor, ""))
        beside = None if partner is None else partner[partner["split"] == split]
        around = Surroundings(rows, beside, QUANTITIES[predictor].unit)
        reasons = [around.why(row) for _, row in found.iterrows()]
        inside = [inside_interval(row) for _, row in found.iterrows()]
        parts.append(found.assign(inside=inside, why=reasons))
    return pd.concat(parts, ignore_index=True)


def inside_interval(row: pd.Series) -> str:
    """The narrowest of a row's intervals that holds the measured value: 80 %, 90 % or no."""
    if row["q0.1"] <= row["measured"] <= row["q0.9"]:
        return "80 %"
    return "90 %" if row["q0.05"] <= row["measured"] <= row["q0.95"] else "no"


@dataclass(frozen=True)
class Surroundings:
    """What one bad forecast can be compared with.

    Attributes
    ----------
    rows : DataFrame
        Judged rows of its predictor and split, itself among them.
    beside : DataFrame or None
        Judged rows of the same split for what else was measured of the same runs.
    unit : str
        Of what its predictor forecasts.
    """

    rows: pd.DataFrame
    beside: pd.DataFrame | None
    unit: str

    def why(self, row: pd.Series) -> str:
        """One or two clauses; what could be known before the job ran comes first."""
        if row["domain"] == OUT_OF_DOMAIN:
            known = f"out of domain: {row['reason']}" if row["reason"] else "out of domain"
        else:
            known = self._measured_twice(row) or self._disturbed(row)
        told = [clause for clause in (known, self._unsure(row)) if clause]
        return "; ".join(told) or self._family(row)

    def _measured_twice(self, row: pd.Series) -> str:
        """Of rows that got one forecast and came out differently, not all can be right."""
        key = ["job_id", "device_kind", *(["together"] if "together" in self.rows else [])]
        same = (self.rows[key] == row[key]).all(axis=1) & (self.rows.index != row.name)
        twins = self.rows[same]
        twins = twins[_times_off(twins["predicted"], row["predicted"]) <= SAME_FORECAST]
        unlike = twins[_times_off(twins["measured"], row["measured"]) > UNLIKE]
        if unlike.empty:
            return ""
        here, there = (quantity(v, self.unit) for v in (row["measured"], *unlike["measured"][:1]))
        return f"measured {here} here and {there} another time: no forecast meets both"

    def _disturbed(self, row: pd.Series) -> str:
        """A run that was slower and less busy than its intervals allow was hardly alone."""
        if self.beside is None:
            return ""
        found = self.beside[(self.beside[RUN] == row[RUN]).all(axis=1)]
        if len(found) != 1:
            return ""
        other = found.iloc[0]
        if self.unit == "seconds":
            slow, idle = row["measured"] > row["q0.9"], other["measured"] < other["q0.1"]
            also = f"kept the device only {quantity(other['measured'], 'fraction')} busy"
        else:
            slow, idle = other["measured"] > other["q0.9"], row["measured"] < row["q0.1"]
            also = f"took {quantity(other['measured'], 'seconds')} a step"
        if not (slow and idle):
            return ""
        expected = quantity(other["predicted"], "fraction" if self.unit == "seconds" else "seconds")
        return f"the same run {also}, forecast {expected}: something may have disturbed it"

    def _unsure(self, row: pd.Series) -> str:
        inside = inside_interval(row)
        if inside == "no":
            return ""
        ends = ("q0.1", "q0.9") if inside == "80 %" else ("q0.05", "q0.95")
        span = " to ".join(quantity(row[end], self.unit) for end in ends)
        return f"inside its own {inside} interval, {span}: the forecast knew that it was unsure"

    def _family(self, row: pd.Series) -> str:
        same = (self.rows["family"] == row["family"]) & (self.rows.index != row.name)
        others = self.rows[same & self.rows["error"].notna()]
        family, n = row["family"], len(others)
        if n < ENOUGH:
            few = {0: "no other row", 1: "one other row only"}.get(n, f"{n} other rows only")
            return f"{few} of {family} to compare it with"
        own = np.log(_times_off(row["predicted"], row["measured"]))
        leaning = float(others["error"].median())
        if leaning * row["error"] > 0 and np.log(_times_off(1 + leaning, 1.0)) >= SHARED * own:
            too = "high" if leaning > 0 else "low"
            return (
                f"{family} as a whole is forecast too {too}: {100 * leaning:+.0f} % in the median "
                f"of {n} other rows"
            )
        off = 100 * float(others["error"].abs().median())
        typical = np.log(_times_off(others["predicted"], others["measured"])).median()
        shown = f"are off by {off:.0f} % in the median"
        if typical < SHARED * own:
            return f"it stands alone: the {n} other rows of {family} {shown}"
        return f"{family} is hard to forecast: its {n} other rows {shown}"


def _times_off(a: pd.Series | float, b: pd.Series | float) -> Any:
    """By how many times two values differ, at least 1; infinite where one of them is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.abs(np.log(np.divide(a, b))))
