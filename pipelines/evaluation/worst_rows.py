"""The forecasts with the largest errors, and a diagnosis of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from presage.features.quantities.quantity_registry import COMPUTE_UTILIZATION, QUANTITIES, STEP_TIME
from presage.pipelines.evaluation.evaluation_tables import OUT_OF_DOMAIN
from presage.system.text.units import quantity

# Forecasts closer than this factor do not distinguish two rows.
SAME_FORECAST = 1.05
# Measurements that differ by more than this factor cannot both be predicted.
UNLIKE = 1.25
# Minimum rows to characterize the forecasts of a family.
ENOUGH = 3
# Fraction of a row's own error, on a logarithmic scale, from which its family shares the error.
SHARED = 1 / 3

# Other measurements of the same run: a disturbed job is slower, and less busy.
RUN = ["job_id", "device_kind", "machine", "campaign", "split"]
SAME_RUN = {
    STEP_TIME.name: COMPUTE_UTILIZATION.name,
    COMPUTE_UTILIZATION.name: STEP_TIME.name,
}


def worst_rows(
    judged: Mapping[str, pd.DataFrame], predictor: str, *, count: int = 10
) -> pd.DataFrame:
    """Return the rows of each split with the largest errors, with ``inside`` and ``why``.

    Errors are compared as factors, not as shares: a job that takes ten times as long as predicted
    (-90 %) is worse than a job that takes half as long (+100 %).

    Parameters
    ----------
    judged : mapping of str to DataFrame
        Rows of every predictor: a run's measurement for one may explain the error of another.
    """
    parts = []
    for split, rows in judged[predictor].groupby("split", sort=True):
        far = _times_off(rows["predicted"], rows["measured"])
        order = far.sort_values(ascending=False, kind="stable").index[:count]
        found: pd.DataFrame = rows.loc[order]
        partner = judged.get(SAME_RUN.get(predictor, ""))
        other_rows = None if partner is None else partner[partner["split"] == split]
        around = Surroundings(rows, other_rows, QUANTITIES[predictor].unit)
        reasons = [around.why(row) for _, row in found.iterrows()]
        inside = [inside_interval(row) for _, row in found.iterrows()]
        parts.append(found.assign(inside=inside, why=reasons))
    return pd.concat(parts, ignore_index=True)


def inside_interval(row: pd.Series) -> str:
    """Return a row's narrowest interval with the measured value inside: 80 %, 90 % or no."""
    if row["q0.1"] <= row["measured"] <= row["q0.9"]:
        return "80 %"
    return "90 %" if row["q0.05"] <= row["measured"] <= row["q0.95"] else "no"


@dataclass(frozen=True)
class Surroundings:
    """Data for the diagnosis of an inaccurate forecast.

    Attributes
    ----------
    rows : DataFrame
        Judged rows of its predictor and split, including itself.
    other_rows : DataFrame or None
        Judged rows of the same split with another measurement of the same runs.
    unit : str
        Unit of the predicted quantity.
    """

    rows: pd.DataFrame
    other_rows: pd.DataFrame | None
    unit: str

    def why(self, row: pd.Series) -> str:
        """Return one or two clauses; what was known before the job ran comes first."""
        if row["domain"] == OUT_OF_DOMAIN:
            known = f"out of domain: {row['reason']}" if row["reason"] else "out of domain"
        else:
            known = self._conflicting_measurement(row) or self._disturbed(row)
        clauses = [clause for clause in (known, self._unsure(row)) if clause]
        return "; ".join(clauses) or self._family(row)

    def _conflicting_measurement(self, row: pd.Series) -> str:
        """Return a clause if a row with the same forecast was measured differently."""
        key = ["job_id", "device_kind", *(["together"] if "together" in self.rows else [])]
        same = (self.rows[key] == row[key]).all(axis=1) & (self.rows.index != row.name)
        twins = self.rows[same]
        twins = twins[_times_off(twins["predicted"], row["predicted"]) <= SAME_FORECAST]
        unlike = twins[_times_off(twins["measured"], row["measured"]) > UNLIKE]
        if unlike.empty:
            return ""
        here, there = (quantity(v, self.unit) for v in (row["measured"], *unlike["measured"][:1]))
        return f"measured {here} here but {there} another time: one forecast cannot match both"

    def _disturbed(self, row: pd.Series) -> str:
        """Return a clause for a run that was both slower and less busy than its intervals allow."""
        if self.other_rows is None:
            return ""
        found = self.other_rows[(self.other_rows[RUN] == row[RUN]).all(axis=1)]
        if len(found) != 1:
            return ""
        other = found.iloc[0]
        if self.unit == "seconds":
            slow, idle = row["measured"] > row["q0.9"], other["measured"] < other["q0.1"]
            also = f"used only {quantity(other['measured'], 'fraction')} of the device"
        else:
            slow, idle = other["measured"] > other["q0.9"], row["measured"] < row["q0.1"]
            also = f"took {quantity(other['measured'], 'seconds')} per step"
        if not (slow and idle):
            return ""
        expected = quantity(other["predicted"], "fraction" if self.unit == "seconds" else "seconds")
        return f"the same run {also}, predicted {expected}: it may have been disturbed"

    def _unsure(self, row: pd.Series) -> str:
        inside = inside_interval(row)
        if inside == "no":
            return ""
        ends = ("q0.1", "q0.9") if inside == "80 %" else ("q0.05", "q0.95")
        span = " to ".join(quantity(row[end], self.unit) for end in ends)
        return f"inside its own {inside} interval, {span}: the forecast was uncertain"

    def _family(self, row: pd.Series) -> str:
        same = (self.rows["family"] == row["family"]) & (self.rows.index != row.name)
        others = self.rows[same & self.rows["error"].notna()]
        family, n = row["family"], len(others)
        if n < ENOUGH:
            few = {0: "no other row", 1: "one other row only"}.get(n, f"{n} other rows only")
            return f"{few} of {family} for comparison"
        own = np.log(_times_off(row["predicted"], row["measured"]))
        leaning = float(others["error"].median())
        if leaning * row["error"] > 0 and np.log(_times_off(1 + leaning, 1.0)) >= SHARED * own:
            too = "high" if leaning > 0 else "low"
            return (
                f"forecasts of {family} are too {too}: {100 * leaning:+.0f} % in the median of "
                f"{n} other rows"
            )
        off = 100 * float(others["error"].abs().median())
        typical = np.log(_times_off(others["predicted"], others["measured"])).median()
        shown = f"have a median error of {off:.0f} %"
        if typical < SHARED * own:
            return f"an outlier: the {n} other rows of {family} {shown}"
        return f"{family} is hard to predict: its {n} other rows {shown}"


def _times_off(a: pd.Series | float, b: pd.Series | float) -> Any:
    """Return the factor between two values, at least 1; infinite if one of them is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(np.abs(np.log(np.divide(a, b))))
