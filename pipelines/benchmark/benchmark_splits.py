"""Named splits of one table into folds: of unseen models, devices, framework releases and so on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd

from presage.errors import TrainingError
from presage.models.calibration.group_margins import MIN_GROUPS
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_task import LEAST_ROWS
from presage.system.arrays import Array, Mask

log = logging.getLogger(__name__)

FOLDS = 5
# Columns whose values define the groups of a split.
SPLITS = ("model", "family", "group", "device", "release", "source", "job", "campaign")
# Splits that leave out each value in turn: there are few, and they differ from one another.
EACH = ("group", "device", "release", "source", "campaign")
EACH_TO_CALIBRATE = ("device", "release", "source")  # five folds of the others are enough


def make_folds(groups: Sequence[str], *, seed: int, each: bool = False) -> Folds:
    """Return a fold for each row, equal for equal groups.

    Groups are assigned in the order of a digest of their name and the seed, so that folds have
    equally many groups, up to one. With ``each``, every group is a separate fold.

    Raises
    ------
    TrainingError
        There are fewer than two groups: one side would be empty.
    """
    names = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "no row"
        raise TrainingError(
            f"the split leaves one side empty: there is {found}; "
            "split by a column with two or more values"
        )
    folds = len(names) if each else min(FOLDS, len(names))
    fold = {name: position % folds for position, name in enumerate(names)}
    return np.array([fold[name] for name in groups], dtype=np.int64)


def split_folds(metadata: pd.DataFrame, split: str, *, seed: int) -> Folds:
    """Return the folds of a named split: five, or one for each value of a split in ``EACH``."""
    return make_folds(list(metadata[split]), seed=seed, each=split in EACH)


def novelty(
    train: pd.DataFrame,
    test: pd.DataFrame,
    together: pd.Series | None = None,
    *,
    known: str = "job",
) -> str:
    """Return the column in which most rows of ``test`` differ from all rows of ``train``.

    The result is a device, a family, a model, or else ``known``; intervals are calibrated on rows
    left out in that way. Rows that share a value of ``together`` are new if one of them is. If too
    few training rows remain without the most frequent value, a warning is logged.
    """
    for split in ("device", "family", "model"):
        unseen = ~test[split].isin(set(train[split]))
        if together is not None:
            unseen = unseen.groupby(together).transform("any")
        if unseen.mean() <= 0.5:
            continue
        if len(train) - train[split].value_counts().max() >= LEAST_ROWS:
            return split
        log.warning(
            "--train holds hardly more than one %s, and most rows of --test are of another: "
            "intervals are too narrow for that", split,
        )  # fmt: skip
    return known


# What may be new in a row. In a line, whatever is new in one column is new in the later ones.
_JOB = ("group", "family", "model")
_NOVELTIES = (("source",), ("device",), ("release",), _JOB)


def novelties(
    train: pd.DataFrame,
    test: pd.DataFrame,
    together: pd.Series | None = None,
    *,
    far: Mask | None = None,
) -> dict[str, Mask]:
    """Return the rows of ``test`` in which each of some columns differs from all of ``train``.

    Of a line of ``_NOVELTIES``, the first column that is new in a row counts. Intervals of such
    rows are calibrated on training rows that were left out by that column. It needs ``MIN_GROUPS``
    values in training, with ``LEAST_ROWS`` besides the most frequent one; else the next column
    stands in for it, and a warning is logged. Rows that share a value of ``together`` are new if
    one of them is. Rows that are ``far`` from the training domain count as rows of a new group,
    family or model, as in serving.

    Returns
    -------
    dict of str to ndarray of bool, shape (rows of ``test``,)
        Only columns that are new in a row.
    """
    out: dict[str, Mask] = {}
    for line in _NOVELTIES:
        settled = np.zeros(len(test), dtype=bool)
        for column in line:
            unseen = ~test[column].isin(set(train[column]))
            if far is not None and line == _JOB:
                unseen |= far
            if together is not None:
                unseen = unseen.groupby(together).transform("any")
            new = unseen.to_numpy(bool) & ~settled
            if not new.any():
                continue
            counts = train[column].value_counts()
            if len(counts) >= MIN_GROUPS and len(train) - counts.max() >= LEAST_ROWS:
                out[column] = new
                settled |= new
            else:
                log.warning(
                    "--train holds hardly more than one %s, and %d rows of --test are of another: "
                    "their intervals are too narrow for that", column, int(new.sum()),
                )  # fmt: skip
    return out


def own_fold(outputs: Array, folds: Folds) -> Array:
    """Return for each row the outputs (folds, rows, ...) of the networks not trained on it."""
    own: Array = outputs[np.searchsorted(np.unique(folds), folds), np.arange(len(folds))]
    return own
