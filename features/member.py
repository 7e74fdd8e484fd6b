"""What a member of a co-location asks of its device: how busy it keeps it, and with what.

Columns are free of the job's own scale where they can be, logarithms and shares: interference is
a matter of the part of a device that a job takes, not of how long its step is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log, nan

import numpy as np

from presage.features.mixture import loading_s
from presage.features.placement import Placement
from presage.features.roofline import roofline
from presage.features.schema import Matrix

STEP_S = 1e-3  # about what a step costs besides its operators and its samples
LEAST = 1e-4  # of a share, before its logarithm


@dataclass(frozen=True, slots=True)
class SoloProfile:
    """What was measured of a job alone on its share of the device; NaN where nothing was."""

    step_time_s: float = nan
    memory_bytes: float = nan
    compute_utilization: float = nan  # fraction


MEMBER_COLUMNS = (
    "log step time", "log roofline / step time", "log compute / step time",
    "log memory traffic / step time", "log launches / step time", "log loading / step time",
    "log operators", "log time of an operator", "log memory / the device's",
    "compute-bound share", "loads data", "trains", "half precision", "log batch size",
    "utilization", "compute capability", "log FLOP/s", "log bandwidth", "log device memory",
    "log share",
)  # fmt: skip


def member_matrix(placements: Sequence[Placement], alone: Sequence[SoloProfile]) -> Matrix:
    """Columns of members, shape (members, ``MEMBER_COLUMNS``).

    What nobody measured is what first principles give: the roofline and the host's part for the
    step time, context and live tensors for memory, the roofline's share of the step for
    utilization.
    """
    rows = [_row(placement, solo) for placement, solo in zip(placements, alone, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(MEMBER_COLUMNS))


def _row(placement: Placement, alone: SoloProfile) -> list[float]:
    job, device, share = placement.job, placement.device, placement.share
    bound, host_s = roofline(job, device, share), loading_s(job)
    operators = sum(row.count for row in job.op_stats)
    step_s = _known(alone.step_time_s, bound.step_s + STEP_S + host_s)
    memory_bytes = _known(alone.memory_bytes, device.context_bytes + job.peak_live_bytes)
    utilization = _known(alone.compute_utilization, min(bound.step_s / step_s, 1.0))
    seconds = (bound.step_s, bound.compute_s, bound.memory_s, bound.overhead_s, host_s)
    return [
        log(step_s),
        *(log(part_s / step_s + LEAST) for part_s in seconds),
        log(operators),
        log(step_s / operators),
        log(memory_bytes / device.memory_bytes),
        bound.compute_bound_s / (bound.step_s + 1e-12),
        float(job.job.loads_data),
        float(job.trains),
        float(job.job.precision in ("fp16", "bf16")),
        log(job.job.batch_size),
        utilization,
        device.compute_capability,
        log(device.flops_per_s(job.job.precision)),
        log(device.memory_bandwidth_bytes_per_s),
        log(device.memory_bytes),
        log(share.fraction),
    ]


def _known(measured: float, otherwise: float) -> float:
    return measured if isfinite(measured) and measured > 0 else otherwise
