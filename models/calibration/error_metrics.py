"""Error metrics of forecasts that are comparable across targets."""

from __future__ import annotations

import numpy as np

from presage.system.arrays import Array


def point_metrics(y: Array, predicted: Array) -> dict[str, float]:
    """Return error metrics of point forecasts (rows,): percentages, and MAE in the target's unit.

    Percentages are over the rows where ``y`` is not 0.
    """
    is_used = y != 0
    error = np.abs(predicted[is_used] - y[is_used])
    relative = error / np.abs(y[is_used]) if is_used.any() else np.zeros(1)
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
    """Return the coverage of an interval and its median width relative to ``y``, in percent."""
    return {
        "coverage": float(100 * ((low <= y) & (y <= high)).mean()),
        "interval_width": float(100 * np.median((high - low) / np.abs(y))),
    }
