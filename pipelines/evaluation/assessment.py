"""Assessment: the complete result of an evaluation, for the report page and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from presage.pipelines.evaluation.evaluation_tables import (
    GROUPS,
    calibration_rows,
    error_by,
    judged,
    records,
)
from presage.pipelines.evaluation.worst_rows import worst_rows
from presage.pipelines.stages.evaluate import Metrics

# Columns that describe an inaccurate forecast, besides the percentage.
WORST_COLUMNS = (
    "split job_id family device_kind machine campaign together measured q0.05 q0.1 predicted q0.9 "
    "q0.95 inside domain reason why"
).split()


@dataclass(frozen=True)
class Assessment:
    """Metrics, and tables that locate the error.

    Attributes
    ----------
    metrics : dict
        Predictor -> split -> model -> figures, as in ``metrics.json``.
    judged : mapping of str to DataFrame
        Rows of each predictor that were measured.
    calibration : DataFrame
        Columns predictor, split, promised, observed.
    error_by : mapping of str to mapping of str to DataFrame
        Predictor -> one of ``GROUPS`` -> figures per split and group.
    worst : mapping of str to DataFrame
        Predictor -> the rows of each split with the largest error.
    """

    metrics: Metrics
    judged: Mapping[str, pd.DataFrame]
    calibration: pd.DataFrame
    error_by: Mapping[str, Mapping[str, pd.DataFrame]]
    worst: Mapping[str, pd.DataFrame]

    def as_json(self) -> dict[str, Any]:
        """Return everything but the single rows, as JSON values."""
        return {
            "metrics": self.metrics,
            "calibration": _json_records(self.calibration),
            "error_by": {
                predictor: {group: _json_records(table) for group, table in tables.items()}
                for predictor, tables in self.error_by.items()
            },
            "worst": {
                predictor: _json_records(table[[name for name in WORST_COLUMNS if name in table]])
                for predictor, table in self.worst.items()
            },
        }


def assess(metrics: Metrics, forecasts: Mapping[str, pd.DataFrame]) -> Assessment:
    """Compute the tables of forecasts with known metrics."""
    rows = {predictor: judged(table) for predictor, table in forecasts.items()}
    return Assessment(
        metrics=metrics,
        judged=rows,
        calibration=calibration_rows(forecasts),
        error_by={
            predictor: {group: error_by(group, table) for group in GROUPS}
            for predictor, table in rows.items()
        },
        worst={predictor: worst_rows(rows, predictor) for predictor in rows},
    )


def _json_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON values: unknown values are null."""
    return [
        {name: None if pd.isna(value) else value for name, value in row.items()}
        for row in records(table)
    ]
