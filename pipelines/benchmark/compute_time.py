"""What a job's step takes on one device, from the rows that a model may see."""

from __future__ import annotations

import numpy as np
import pandas as pd

from presage.pipelines.benchmark.scale_rows import ScaleRows
from presage.system.arrays import Array, Mask


def compute_seconds(rows: ScaleRows, seen: Mask) -> Array:
    """Seconds of computing of every row's step, shape (rows,).

    Of a job that was seen, the median of what its rows tell; of another batch size of a model that
    was seen, the line a + b x batch size through those (Pollux, section 3.2), or by the roofline
    from a single one; of other models the roofline, by as much as it was off in the middle of what
    was seen.
    """
    told = seen & np.isfinite(rows.facts["alone_s"].to_numpy())
    job = rows.who["job"] + " on " + rows.who["device"]
    jobs = pd.DataFrame(
        {
            "kind": rows.who["kind"].groupby(job).first(),
            "batch_size": rows.facts["batch_size"].groupby(job).first(),
            "roofline_s": rows.facts["roofline_s"].groupby(job).first(),
            "known_s": rows.facts["alone_s"][told].groupby(job[told]).median(),
        }
    )
    off = jobs["known_s"] / jobs["roofline_s"]
    seconds = off.fillna(1.0 if off.isna().all() else off.median()) * jobs["roofline_s"]
    for _, alike in jobs.groupby("kind"):
        known, asked = alike[alike["known_s"].notna()], alike[alike["known_s"].isna()]
        if len(known) > 1:
            seconds[asked.index] = _line(known, asked["batch_size"].to_numpy(dtype=np.float64))
        elif len(known) == 1:
            seconds[asked.index] = off[known.index[0]] * asked["roofline_s"]
    return job.map(seconds).to_numpy(dtype=np.float64)


def _line(known: pd.DataFrame, batch_size: Array) -> Array:
    """Least squares of relative errors; nowhere less than half of the least that was seen."""
    y = known["known_s"].to_numpy(dtype=np.float64)
    terms = np.stack([np.ones(len(y)), known["batch_size"].to_numpy(dtype=np.float64)], axis=1)
    (fixed, each), *_ = np.linalg.lstsq(terms / y[:, None], np.ones(len(y)), rcond=None)
    line: Array = np.maximum(fixed + each * batch_size, y.min() / 2)
    return line
