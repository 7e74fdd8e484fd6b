"""How far forecasts are from measurements, in figures that compare across targets."""

from __future__ import annotations

import numpy as np

from presage.system.arrays import Array


def point_metrics(y: Array, predicted: Array) -> dict[str, float]:
    """Error of point forecasts of shape (rows,): percentages, MAE in the target's unit.

    Percentages are of the rows that are not 0.
    """
    some = y != 0
    relative = np.abs(predicted[some] - y[some]) / np.abs(y[some]) if some.any() else np.zeros(1)
    log_error = np.log1p(np.maximum(predicted, 0)) - np.log1p(y)
    return {
        "rows": len(y),
        "mape": float(100 * relative.mean()),
        "median_ape": float(100 * np.median(relative)),
        "within_10pct": float(100 * (relative <= 0.1).mean()),
        "mae": float(np.abs(predicted - y).mean()),
        "rmsle": float(np.sqrt((log_error**2).mean())),
    }


def interval_metrics(y: Array, low: Array, high: Array) -> dict[str, float]:
    """Share of rows inside the interval, in percent, and its median width relative to ``y``."""
    return {
        "coverage": float(100 * ((low <= y) & (y <= high)).mean()),
        "interval_width": float(100 * np.median((high - low) / np.abs(y))),
    }
