"""Which rows a model may see: folds by job and by family.

By job, the fold is a digest of the job's name, not of its position: equal everywhere and for ever.
A campaign that grows moves no job to another fold, so a new release is judged on jobs that no
earlier release has trained on either. By family, each family is a fold of its own, or where
they are very many shares one with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

FOLDS = 5  # by job
HELD_OUT_FOLD = 0  # never trained on by a release: the gate's jury
MAX_FAMILY_FOLDS = 50  # that are folds of their own: each costs an ensemble

Folds = np.ndarray[Any, np.dtype[np.int64]]


def job_folds(job_ids: Sequence[str]) -> Folds:
    """Fold of each job, in [0, FOLDS), by digest of its id."""
    digests = [hashlib.sha256(job_id.encode()).digest() for job_id in job_ids]
    return np.array([int.from_bytes(d[:8], "big") % FOLDS for d in digests], dtype=np.int64)


def family_folds(families: Sequence[str]) -> Folds:
    """Fold of each row: the position of its family among those present, sorted."""
    names = sorted(set(families))
    if len(names) > MAX_FAMILY_FOLDS:
        return job_folds(families)
    order = {family: i for i, family in enumerate(names)}
    return np.array([order[family] for family in families], dtype=np.int64)


def device_folds(kinds: Sequence[str]) -> Folds:
    """Fold of each row, in [0, FOLDS): devices by their names' order, so that no fold is of all."""
    return family_folds(kinds) % FOLDS


def folds_by_split(rows: pd.DataFrame) -> dict[str, Folds]:
    """Fold of each row, by its job and by its family."""
    return {"job": job_folds(list(rows["job_id"])), "family": family_folds(list(rows["family"]))}
