"""What a member of a co-location asks of its device: how busy it keeps it, and with what.

Columns are free of the job's own scale where they can be, logarithms and shares: interference is
a matter of the part of a device that a job takes, not of how long its step is.
"""

from __future__ import annotations

import numpy as np

from presage.features.columns.schema import columns
from presage.system.arrays import FloatMatrix, Matrix

# What was measured, or is forecast, of a job alone on its share of the device.
SOLO_PROFILE = ("compute_utilization", "memory_bytes", "step_time_s")

STEP_S = 1e-3  # about what a step costs besides its operators and its samples
LEAST = 1e-4  # of a share, before its logarithm
GIB = 2**30

MEMBER_COLUMNS = (
    "log step time", "log roofline / step time", "log compute / step time",
    "log memory traffic / step time", "log launches / step time", "log loading / step time",
    "log operators", "log time of an operator", "log memory / the device's",
    "compute-bound share", "loads data", "trains", "half precision", "log batch size",
    "utilization", "compute capability", "log FLOP/s", "log bandwidth", "log device memory",
    "log share",
)  # fmt: skip

# Which of them tell one device from another, the job aside.
MEMBER_IDENTITY = tuple(
    MEMBER_COLUMNS.index(name) for name in ("compute capability", "log device memory")
)


def member_matrix(features: FloatMatrix, alone: Matrix) -> Matrix:
    """Columns of members, shape (members, ``MEMBER_COLUMNS``), as networks see them.

    Parameters
    ----------
    features : ndarray of shape (members, columns of the full set)
    alone : ndarray of shape (members, ``SOLO_PROFILE``)
        NaN or 0 where nothing is known. There stands what first principles give: the roofline
        and the host's part for the step time, the sum over its holders for memory, the
        roofline's part of the step for utilization.
    """
    known = np.isfinite(alone) & (alone > 0)
    full = dict(zip(columns("full"), features.T, strict=True))
    bound_s = full["roofline_s"]
    host_s = full["loading_share"] * bound_s
    step_s = np.where(known[:, 2], alone[:, 2], bound_s + STEP_S + host_s)
    memory_bytes = np.where(known[:, 1], alone[:, 1], full["memory_prior_bytes"])
    utilization = np.where(known[:, 0], alone[:, 0], np.minimum(bound_s / step_s, 1))
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
