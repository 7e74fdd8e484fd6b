"""Effects that add up to the error of a forecast: of the device, the job and the co-located jobs.

A job is identified by its columns of the feature matrix that do not depend on the device, so that a
server finds it without hashing operators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np

from presage.features import forecast
from presage.features.columns.schema import columns
from presage.models.offsets.evidence import Effect, Terms
from presage.system.arrays import FloatMatrix

JobKey = bytes
# Levels of effects.
DEVICE, PRECISION, JOB = forecast.DEVICE, forecast.PRECISION, forecast.JOB
# Of jobs that are bound by compute, against those that are bound by memory.
BOUND = "compute over memory"
VICTIM, VICTIM_ON = "victim", "victim on a device"
AGGRESSOR, AGGRESSOR_ON = "co-located job", "co-located job on a device"
# By level, what its outcomes have in common with a forecast.
SOURCE_OF = {
    DEVICE: forecast.DEVICE,
    PRECISION: forecast.PRECISION,
    BOUND: forecast.PRECISION,
    JOB: forecast.JOB,
    VICTIM: forecast.JOB,
    VICTIM_ON: forecast.JOB_ON_DEVICE,
    AGGRESSOR: forecast.COLOCATED_JOBS,
    AGGRESSOR_ON: forecast.COLOCATED_JOBS,
}
SOLO_LEVELS = (DEVICE, PRECISION, BOUND, JOB)
PAIR_LEVELS = (DEVICE, VICTIM, VICTIM_ON, AGGRESSOR, AGGRESSOR_ON)

JOB_COLUMNS = (
    "batch_size", "input_elements", "channels_last", "loads_data", "parameters", "peak_live_bytes",
    "op_count", "largest_input", "flops", "bytes_moved", "forward_flops", "half_precision", "tf32",
    "fp64", "trains",
)  # fmt: skip
SHARE_COLUMN = columns("full").index("share")
_BOUND_COLUMN = columns("full").index("log_compute_over_memory")
_MOST_BOUND = 6.0  # a logarithm: beyond, nothing but one of both matters
_POSITIONS = [columns("full").index(name) for name in JOB_COLUMNS]


def job_keys(features: FloatMatrix) -> list[JobKey]:
    """Return the identity of each row's job; ``features`` has the columns of the full set."""
    rows = features.take(_POSITIONS, axis=1).astype(np.float32)
    return [row.tobytes() for row in rows]


def boundness(features: FloatMatrix) -> list[float]:
    """Return for each row how far its job is bound by compute: negative if by memory."""
    values = features[:, _BOUND_COLUMN].astype(np.float64)
    clipped: list[float] = np.clip(values, -_MOST_BOUND, _MOST_BOUND).tolist()
    return clipped


def solo_terms(kind: str, precision: str, job: JobKey, bound: float) -> Terms:
    """Return the terms of a job that runs solo on a kind of device.

    ``bound`` is its :func:`boundness`.
    """
    return (*shared_terms(kind, precision, bound), ((JOB, job), 1.0))


def shared_terms(kind: str, precision: str, bound: float) -> Terms:
    """Return the terms that all jobs of a precision on a kind of device have."""
    return (
        ((DEVICE, kind), 1.0),
        ((PRECISION, kind, precision), 1.0),
        ((BOUND, kind, precision), bound),
    )


def solo_cell(kind: str, job: JobKey, share: float) -> Hashable:
    """Return the cell of a job that runs solo on a share of a kind of device."""
    return kind, job, round(share, 3)


def solo_job(cell: Hashable) -> JobKey:
    """Return the job of a :func:`solo_cell`."""
    _, job, _ = cast("tuple[str, JobKey, float]", cell)
    return job


def pair_terms(kind: str, victim: JobKey, others: Sequence[JobKey]) -> Terms:
    """Return the terms of the slowdown of a job by co-located jobs."""
    terms: list[tuple[Effect, float]] = [
        ((DEVICE, kind), 1.0),
        ((VICTIM, victim), 1.0),
        ((VICTIM_ON, kind, victim), 1.0),
    ]
    for other in others:
        terms.append(((AGGRESSOR, other), 1.0))
        terms.append(((AGGRESSOR_ON, kind, other), 1.0))
    return tuple(terms)


def pair_cell(kind: str, victim: JobKey, others: Sequence[JobKey]) -> Hashable:
    """Return the cell of a job with co-located jobs, in any order."""
    return kind, victim, tuple(sorted(others))
