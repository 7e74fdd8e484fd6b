"""Compute time of a job's step on one device, from the training rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from presage.pipelines.benchmark.scaling.scale_rows import ScaleRows
from presage.system.arrays import Array, Mask


def compute_seconds(rows: ScaleRows, seen: Mask) -> Array:
    """Return the compute seconds of every row's step, shape (rows,).

    For a job in the training rows, this is the median of its rows. For another batch size of a
    known model, it is the line a + b x batch size through its rows (Pollux, section 3.2), or
    roofline-scaled from a single one. For other models, it is the roofline, scaled by the median
    ratio of the training rows.
    """
    is_known = seen & np.isfinite(rows.facts["alone_s"].to_numpy())
    job = rows.metadata["job"] + " on " + rows.metadata["device"]
    jobs = pd.DataFrame(
        {
            "kind": rows.metadata["kind"].groupby(job).first(),
            "batch_size": rows.facts["batch_size"].groupby(job).first(),
            "roofline_s": rows.facts["roofline_s"].groupby(job).first(),
            "known_s": rows.facts["alone_s"][is_known].groupby(job[is_known]).median(),
        }
    )
    off = jobs["known_s"] / jobs["roofline_s"]
    seconds = off.fillna(1.0 if off.isna().all() else off.median()) * jobs["roofline_s"]
    for _, alike in jobs.groupby("kind"):
        known, requested = alike[alike["known_s"].notna()], alike[alike["known_s"].isna()]
        if len(known) > 1:
            seconds[requested.index] = _line(
                known, requested["batch_size"].to_numpy(dtype=np.float64)
            )
        elif len(known) == 1:
            seconds[requested.index] = off[known.index[0]] * requested["roofline_s"]
    return job.map(seconds).to_numpy(dtype=np.float64)


def _line(known: pd.DataFrame, batch_size: Array) -> Array:
    """Fit by least squares of relative errors; at least half of the smallest known value."""
    y = known["known_s"].to_numpy(dtype=np.float64)
    terms = np.stack([np.ones(len(y)), known["batch_size"].to_numpy(dtype=np.float64)], axis=1)
    (fixed, each), *_ = np.linalg.lstsq(terms / y[:, None], np.ones(len(y)), rcond=None)
    line: Array = np.maximum(fixed + each * batch_size, y.min() / 2)
    return line
