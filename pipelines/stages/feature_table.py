"""Features of solo.parquet as a matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd

from presage.features.columns.schema import columns
from presage.system.arrays import Matrix


def feature_matrix(solo: pd.DataFrame, feature_set: str) -> Matrix:
    """Return the raw features of one set, shape (rows, columns)."""
    names = [f"{feature_set}.{name}" for name in columns(feature_set)]
    return solo[names].to_numpy(dtype=np.float64)
