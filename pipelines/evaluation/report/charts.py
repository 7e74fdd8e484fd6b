"""Geometry of the page's charts in the unit square; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from presage.pipelines.evaluation.evaluation_tables import OUT_OF_DOMAIN, records
from presage.system.text.units import quantity

# Marks of one chart: more are indistinguishable, and too slow to draw on a phone.
MOST_POINTS = 1500
# Minimum ticks of a logarithmic axis; the sparsest sufficient ticks are used.
ENOUGH_TICKS = 4


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values and its scale."""

    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, unit: str) -> list[float]:
        """Return round values within the range, at most ten; few on a short range."""
        if self.log:
            ticks = _log_ticks(self.low, self.high, base=2 if unit == "bytes" else 10)
            if len(ticks) > 1:
                return ticks
        span = self.high - self.low
        power = 10 ** math.floor(math.log10(span))
        step = next(s for s in (power / 5, power / 2, power, 2 * power) if span / s <= 8)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Point:
    """A row: its position, and its tooltip."""

    x: float
    y: float
    title: str
    is_out_of_domain: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the grid, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line from the left edge to the right one; it may leave the square."""

    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Scatter:
    """Predicted against measured, on equal axes."""

    points: Sequence[Point]
    ticks: Sequence[Tick]
    within_10pct: tuple[Line, Line]
    rows: int  # ``points`` may be a sample of them


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """Observed share of measured values below each quantile (y) against the promised share (x)."""

    split: str
    points: Sequence[Point]


def axis_of(rows: pd.DataFrame, unit: str) -> Axis:
    """Return an axis for measured and predicted values, logarithmic for scales and ratios."""
    values = rows[["measured", "predicted"]].to_numpy(dtype=np.float64)
    if unit == "fraction":
        low = min(max(math.floor(10 * values.min() - 1e-9), 0), 9) / 10
        return Axis(low, max(float(values.max()), 1.0), log=False)
    values = values[values > 0]
    return Axis(float(values.min()) / 1.1, float(values.max()) * 1.1, log=True)


def scatter(rows: pd.DataFrame, unit: str, axis: Axis) -> Scatter:
    """Return rows as points; many rows are sampled evenly over the measured values."""
    drawn = rows[(rows["measured"] > 0) & (rows["predicted"] > 0)] if axis.log else rows
    drawn = drawn.sort_values(["measured", "job_id", "predicted"], kind="stable")
    if len(drawn) > MOST_POINTS:
        drawn = drawn.iloc[np.linspace(0, len(drawn) - 1, MOST_POINTS).astype(int)]
    points = [
        Point(
            axis.at(row["measured"]),
            axis.at(row["predicted"]),
            _tooltip(row, unit),
            is_out_of_domain=row["domain"] == OUT_OF_DOMAIN,
        )
        for row in records(drawn)
    ]
    ticks = [Tick(axis.at(value), _label(value, unit)) for value in axis.ticks(unit)]
    lines = [Line(axis.at(axis.low * t), axis.at(axis.high * t)) for t in (0.9, 1.1)]
    return Scatter(points, ticks, (lines[0], lines[1]), len(rows))


def calibration_curves(rows: pd.DataFrame) -> list[CalibrationCurve]:
    """Return a curve for each split of one predictor's calibration table."""
    return [
        CalibrationCurve(
            str(split),
            [
                Point(
                    promised,
                    observed,
                    f"promised {100 * promised:.0f} %, observed {100 * observed:.1f} %",
                    is_out_of_domain=False,
                )
                for promised, observed in zip(part["promised"], part["observed"], strict=True)
            ],
        )
        for split, part in rows.groupby("split", sort=True)
    ]


def _tooltip(row: dict[str, Any], unit: str) -> str:
    measured, predicted, low, high = (
        quantity(row[name], unit) for name in ("measured", "predicted", "q0.1", "q0.9")
    )
    text = f"{row['job_id']}: measured {measured}, forecast {predicted} ({low} to {high})"
    return f"{text}\nin {row['together']}" if "together" in row else text


def _label(value: float, unit: str) -> str:
    """Return a round value without insignificant digits."""
    return f"{value:g} x" if unit == "slowdown" else quantity(value, unit)


def _log_ticks(low: float, high: float, *, base: int) -> list[float]:
    """Return powers of the base, with values between them if few, or fewer if many."""
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    between = ((1,), (1, 3), (1, 2, 5), range(1, 10)) if base == 10 else ((1,), (1, 1.5))
    for factors in between:
        ticks = [f * base**e for e in range(first, last + 1) for f in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= ENOUGH_TICKS:
            break
    return ticks[:: math.ceil(len(ticks) / 8) or 1]
