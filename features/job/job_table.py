"""Jobs side by side: what many of them ask of a device, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from presage.features.columns.column import ONE
from presage.features.graph.op_class import OP_CLASS, with_shapes
from presage.features.graph.step_memory import HOLDERS, peak_bytes
from presage.features.job.framework_version import framework_release
from presage.features.job.job import PRECISIONS, JobFeatures
from presage.system.arrays import Array, Ints, Matrix
from presage.system.weak_cache import OnceEach

JOB_SCALARS = (
    ONE, "batch_size", "iterations", "input_elements", "half_precision", "tf32", "fp64",
    "channels_last", "framework_release", "channels_last_release", "loads_data", "loading_s",
    "parameters", *HOLDERS, "peak_live_bytes",
)  # fmt: skip
OP_VALUES = ("flops", "bytes_moved", "count", "input_elements_max", "output_elements")
_BATCH = HOLDERS.index("batch_bytes")
_FLOPS, _OUTPUTS = OP_VALUES.index("flops"), OP_VALUES.index("output_elements")
PRECISION = {name: code for code, name in enumerate(PRECISIONS)}

# About what a sample and a byte of it cost where a step loads its data.
SAMPLE_S, BYTE_S = 5e-6, 1e-9

# Read off operator statistics and memory, the domain's or the protocol's: they name them alike.
op_class_key = attrgetter("kind", "phase", "shape")
op_values = attrgetter(*OP_VALUES)
held_bytes = attrgetter(*HOLDERS)


@dataclass(frozen=True, eq=False)
class JobTable:
    """Jobs, and the operators of all of them one after another. None of it can be changed.

    Attributes
    ----------
    job_ids : tuple of str
    precisions : ndarray of int, shape (jobs,)
        Positions in ``PRECISIONS``.
    scalars : ndarray of shape (jobs, ``JOB_SCALARS``)
    op_counts : ndarray of int, shape (jobs,)
        Rows of operators of each job, at least one.
    op_classes : ndarray of int, shape (ops,)
        Positions in ``OP_CLASSES``.
    op_values : ndarray of shape (``OP_VALUES``, ops)
    op_starts : ndarray of int, shape (jobs,)
        First row of operators of each job.
    computed : dict of object to ndarray
        What was computed of the jobs, by who did.
    """

    job_ids: tuple[str, ...]
    precisions: Ints
    scalars: Matrix
    op_counts: Ints
    op_classes: Ints
    op_values: Matrix
    op_starts: Ints
    computed: dict[object, Matrix] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for array in (
            self.precisions, self.scalars, self.op_counts, self.op_classes, self.op_values,
            self.op_starts,
        ):  # fmt: skip
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.job_ids)

    def scalar(self, name: str) -> Array:
        """One of ``JOB_SCALARS``, shape (jobs,)."""
        return self.scalars[:, JOB_SCALARS.index(name)]

    def op_jobs(self) -> Ints:
        """Whose each row of operators is, shape (ops,)."""
        return np.arange(len(self)).repeat(self.op_counts)


def precision_codes(names: Iterable[str]) -> Ints:
    """Positions in ``PRECISIONS``."""
    return np.array([PRECISION[name] for name in names], dtype=np.intp)


def job_table(jobs: Sequence[JobFeatures]) -> JobTable:
    """Table of jobs, in their order."""
    ops = list(chain.from_iterable([features.op_stats for features in jobs]))
    classes = map(OP_CLASS.__getitem__, map(op_class_key, ops))
    values = chain.from_iterable(map(op_values, ops))
    return table_of_rows(
        job_ids=[features.job.job_id for features in jobs],
        precisions=precision_codes([features.job.precision for features in jobs]),
        scalars=[
            job_scalars(features.job, features.parameters, held_bytes(features.memory))
            for features in jobs
        ],
        op_counts=np.array([len(features.op_stats) for features in jobs], dtype=np.intp),
        op_classes=np.fromiter(classes, np.intp, len(ops)),
        op_values=np.fromiter(values, np.float64, len(ops) * len(OP_VALUES)),
    )


def job_scalars(job: Any, parameters: int, held: tuple[int, ...]) -> tuple[float, ...]:
    """``JOB_SCALARS`` of a job, the domain's or the protocol's.

    ``held`` are bytes by ``HOLDERS``.
    """
    release = framework_release(job.framework_version)
    precision, batch_size, loads_data = job.precision, job.batch_size, job.loads_data
    channels_last = job.memory_format == "channels-last"
    return (
        1, batch_size, job.iterations, job.input_elements, precision in ("fp16", "bf16"),
        precision == "tf32", precision == "fp64", channels_last, release, release * channels_last,
        loads_data, (SAMPLE_S * batch_size + BYTE_S * held[_BATCH]) * loads_data,
        parameters, *held, peak_bytes(*held),
    )  # fmt: skip


def table_of_rows(
    *,
    job_ids: Sequence[str],
    precisions: Ints,
    scalars: Sequence[tuple[float, ...]],
    op_counts: Ints,
    op_classes: Ints,
    op_values: Array,
) -> JobTable:
    """Table of what was read row by row; of ``op_values`` there are ``OP_VALUES`` an operator.

    Operators that came without a shape get that of those in their row together.
    """
    values = np.ascontiguousarray(op_values.reshape(len(op_classes), len(OP_VALUES)).T)
    return JobTable(
        tuple(job_ids),
        precisions,
        np.array(scalars, dtype=np.float64).reshape(len(job_ids), len(JOB_SCALARS)),
        op_counts,
        with_shapes(op_classes, flops=values[_FLOPS], output_elements=values[_OUTPUTS]),
        values,
        op_counts.cumsum() - op_counts,
    )


def _table_of_one(job: JobFeatures) -> JobTable:
    """Kept as long as the job is, with all that is computed of it."""
    return job_table([job])


JOB_TABLES = OnceEach(_table_of_one)
