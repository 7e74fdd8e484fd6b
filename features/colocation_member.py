"""Feature columns of one member of a co-location.

Where possible, columns do not depend on the job's own scale (they are logarithms and shares):
interference depends on the part of a device that a job uses, not on the length of its step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from presage.features.columns.schema import columns
from presage.system.arrays import Array, FloatMatrix, Mask, Matrix

# Solo quantities of a member that its columns are computed from, measured or predicted.
SOLO_PROFILE = ("compute_utilization", "memory", "step_time")

SoloProfile = Mapping[str, Array]  # by the names in ``SOLO_PROFILE``, each of shape (members,)

STEP_S = 1e-3  # approximate fixed cost of a step, without operators and samples
LEAST = 1e-4  # added to a share before the logarithm
GIB = 2**30

MEMBER_COLUMNS = (
    "log step time", "log roofline / step time", "log compute / step time",
    "log memory traffic / step time", "log launches / step time", "log loading / step time",
    "log operators", "log time of an operator", "log memory / the device's",
    "compute-bound share", "loads data", "trains", "half precision", "log batch size",
    "utilization", "compute capability", "log FLOP/s", "log bandwidth", "log device memory",
    "log share",
)  # fmt: skip

# Columns that identify the device, independent of the job.
MEMBER_IDENTITY = tuple(
    MEMBER_COLUMNS.index(name) for name in ("compute capability", "log device memory")
)


def member_matrix(features: FloatMatrix, solo: SoloProfile) -> Matrix:
    """Return the columns of members as networks see them, shape (members, ``MEMBER_COLUMNS``).

    Parameters
    ----------
    features : ndarray of shape (members, columns of the full set)
    solo : mapping of str to ndarray of shape (members,)
        Solo quantities of the members, by the names in ``SOLO_PROFILE``; NaN or 0 where a value
        is missing. Missing values are replaced by first-principles estimates: roofline plus host
        time for the step time, the sum over the memory components for memory, the roofline's
        part of the step for utilization.
    """
    full = dict(zip(columns("full"), features.T, strict=True))
    bound_s = full["roofline_s"]
    host_s = full["loading_share"] * bound_s
    step_s = _known_or(solo["step_time"], bound_s + STEP_S + host_s)
    memory_bytes = _known_or(solo["memory"], full["memory_prior_bytes"])
    utilization = _known_or(solo["compute_utilization"], np.minimum(bound_s / step_s, 1))
    seconds = (bound_s, *(full[f"{part}_s"] for part in ("compute", "memory", "overhead")), host_s)
    return np.column_stack(
        [
            np.log(step_s),
            *(np.log(part_s / step_s + LEAST) for part_s in seconds),
            np.log(full["op_count"]),
            np.log(step_s / full["op_count"]),
            np.log(memory_bytes / GIB / full["memory_gb"]),
            full["compute_bound_share"],
            full["loads_data"],
            full["trains"],
            full["half_precision"],
            np.log(full["batch_size"]),
            utilization,
            full["compute_capability"],
            np.log(full["peak_flops_per_s"]),
            np.log(full["memory_bandwidth_bytes_per_s"]),
            np.log(full["memory_gb"]),
            np.log(full["share"]),
        ]
    )


def _known_or(values: Array, substitutes: Array) -> Array:
    known: Mask = np.isfinite(values) & (values > 0)
    return np.where(known, values, substitutes)
