"""Interface of a benchmark task: rows of campaigns, and forecasts of unseen rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from presage.errors import TrainingError
from presage.features.tables.campaign import Campaign
from presage.system.arrays import Array
from presage.system.text.progress import Progress


class Rows(Protocol):
    """Measured rows: their identity, and the label.

    ``metadata`` has columns ``row`` (a description, equal for equal rows), ``model``, ``family``,
    ``device`` and ``campaign``; ``measured`` has shape (rows,), with NaN for rows without a
    measurement.
    """

    @property
    def metadata(self) -> pd.DataFrame:
        """One line per row."""

    @property
    def measured(self) -> Array:
        """Labels in the unit of the source."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts of rows, in the unit of their label.

    Attributes
    ----------
    quantiles : ndarray of shape (rows, levels)
        Calibrated quantiles of the network.
    baselines : mapping of str to ndarray of shape (rows,)
    more : mapping of str to mapping
        Additional figures of the task, for "mlp" and each baseline.
    """

    quantiles: Array
    baselines: Mapping[str, Array]
    more: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Task(Protocol):
    """A quantity to predict."""

    @property
    def unit(self) -> str:
        """Unit of the reported figures."""

    @property
    def scale(self) -> float:
        """Factor from the source's unit to the reported one."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Available splits, the default first."""

    @property
    def needs_solo_runs(self) -> bool:
        """Whether a row needs solo runs that the other side's files may contain."""

    def rows(self, campaigns: Sequence[Campaign]) -> Any:
        """Return rows of all campaigns, as this task's own :class:`Rows`."""

    def repeats(self, campaigns: Sequence[Campaign]) -> Sequence[Array]:
        """Return repeated measurements of the same thing, each of shape (two or more,)."""

    def forecast(self, train: Any, test: Any, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast rows of ``test`` with models fitted on ``train``.

        Raises
        ------
        TrainingError
            ``train`` is not sufficient for training.
        """

    def cross_forecast(self, rows: Any, split: str, *, seed: int, progress: Progress) -> Forecasts:
        """Forecast every row with models not trained on similar rows.

        Raises
        ------
        TrainingError
            The rows are not sufficient for training, or the split leaves one side empty.
        """


LEAST_ROWS = 20  # five folds, each of which leaves nine rows to calibrate 90 %


def check(rows: Rows, what: str) -> None:
    """Check that the rows are sufficient for training.

    Raises
    ------
    TrainingError
        There are too few rows for calibration, or all labels are equal.
    """
    measured = rows.measured[np.isfinite(rows.measured)]
    if len(measured) < LEAST_ROWS:
        raise TrainingError(
            f"{what}: {len(measured)} rows can be used, but calibration needs {LEAST_ROWS}; "
            "add files"
        )
    if measured.min() == measured.max():
        raise TrainingError(
            f"{what}: the target is {measured[0]:g} in every row; use rows with different values"
        )
