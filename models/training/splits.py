"""Cross-validation folds, by job, by family and by device.

The fold of a job is a digest of its id, not of its position, so it is the same in every table. A
growing campaign moves no job to another fold: a new release is evaluated on jobs that no earlier
release was trained on. Each family is a fold of its own; with very many families or rows, several
families share a fold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 5  # by job
HELD_OUT_FOLD = 0  # never in the training of a release: the gate evaluates on it
MAX_FAMILY_FOLDS = 50  # each costs an ensemble
LONG_ROWS = 200  # from which boosted trees of all folds take longer than processes to start
MANY_ROWS = 20_000  # from which an ensemble for each family would cost more than it shows

Folds = np.ndarray[Any, np.dtype[np.int64]]


def job_folds(job_ids: Sequence[str]) -> Folds:
    """Return the fold of each job, in [0, FOLDS), by digest of its id."""
    digests = [hashlib.sha256(job_id.encode()).digest() for job_id in job_ids]
    return np.array([int.from_bytes(d[:8], "big") % FOLDS for d in digests], dtype=np.int64)


def family_folds(families: Sequence[str]) -> Folds:
    """Return the fold of each row: the position of its family among the sorted families."""
    names = sorted(set(families))
    if len(names) > MAX_FAMILY_FOLDS:
        return job_folds(families)
    order = {family: i for i, family in enumerate(names)}
    return np.array([order[family] for family in families], dtype=np.int64)


def device_folds(kinds: Sequence[str]) -> Folds:
    """Return the fold of each row, in [0, FOLDS), by the order of device kinds or families.

    With two or more kinds, no fold has all rows.
    """
    return family_folds(kinds) % FOLDS


def folds_by_split(rows: pd.DataFrame) -> dict[str, Folds]:
    """Return the fold of each row for the splits by job and by family."""
    by_family = family_folds if len(rows) < MANY_ROWS else device_folds
    return {"job": job_folds(list(rows["job_id"])), "family": by_family(list(rows["family"]))}
