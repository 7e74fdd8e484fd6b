"""What a benchmark asks of a task: rows of campaigns, and forecasts of rows never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from presage.errors import TrainingError
from presage.features.tables.campaign import Campaign
from presage.models.training.fit import Progress
from presage.system.arrays import Array


class Rows(Protocol):
    """Measured rows: who they are, and the label.

    ``who`` has columns ``row`` (what was measured, in words: equal rows are of equal words),
    ``model``, ``family``, ``device`` and ``campaign``; ``measured`` has shape (rows,), with NaN
    where a row is asked about that nothing was measured of.
    """

    @property
    def who(self) -> pd.DataFrame:
        """One line per row."""

    @property
    def measured(self) -> Array:
        """In the unit of the source."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Forecasts of some rows, in the unit of their label.

    Attributes
    ----------
    quantiles : ndarray of shape (rows, levels)
        The network's, calibrated.
    baselines : mapping of str to ndarray of shape (rows,)
    more : mapping of str to mapping
        Further figures of the task's own, of "mlp" and of each baseline.
    """

    quantiles: Array
    baselines: Mapping[str, Array]
    more: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Task(Protocol):
    """One thing to forecast."""

    @property
    def unit(self) -> str:
        """Unit of the label, as figures are given."""

    @property
    def scale(self) -> float:
        """Of that unit, in one of the source's."""

    @property
    def splits(self) -> tuple[str, ...]:
        """What may be left out, the default first."""

    @property
    def needs_runs_alone(self) -> bool:
        """Whether a row needs runs alone that the other side's files may hold."""

    def rows(self, campaigns: Sequence[Campaign]) -> Any:
        """Rows of all campaigns, as this task's own :class:`Rows`."""

    def forecast(self, train: Any, test: Any, *, seed: int, progress: Progress) -> Answers:
        """Rows of ``test`` by models fitted on ``train``.

        Raises
        ------
        TrainingError
            Nothing can be learnt of ``train``.
        """

    def cross_forecast(self, rows: Any, split: str, *, seed: int, progress: Progress) -> Answers:
        """Every row by models that saw no like row.

        Raises
        ------
        TrainingError
            Nothing can be learnt of the rows, or the split leaves one side empty.
        """


LEAST_ROWS = 20  # five folds of which each leaves nine to calibrate 90 % by


def check(rows: Rows, what: str) -> None:
    """Refuse what nothing can be learnt from.

    Raises
    ------
    TrainingError
        There are too few rows to calibrate by, or all labels are equal.
    """
    measured = rows.measured[np.isfinite(rows.measured)]
    if len(measured) < LEAST_ROWS:
        raise TrainingError(
            f"{what}: {len(measured)} rows can be used, to calibrate takes {LEAST_ROWS}; "
            "give more files"
        )
    if measured.min() == measured.max():
        raise TrainingError(
            f"{what}: the target is {measured[0]:g} in every row, nothing can be learnt of "
            "it; give rows that differ"
        )
