"""Many jobs as arrays: scalars of each job and the statistics of their operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from presage.features.columns.column import ONE
from presage.features.graph.op_class import OP_CLASS, infer_shape_classes
from presage.features.graph.step_memory import MEMORY_COMPONENTS, peak_bytes
from presage.features.job.framework_version import framework_release
from presage.features.job.job_description import PRECISIONS, JobFeatures
from presage.system.arrays import Array, Ints, Matrix
from presage.system.weak_cache import WeakCache

JOB_SCALARS = (
    ONE, "batch_size", "iterations", "input_elements", "half_precision", "tf32", "fp64",
    "channels_last", "framework_release", "channels_last_release", "loads_data", "loading_s",
    "parameters", *MEMORY_COMPONENTS, "peak_live_bytes",
)  # fmt: skip
OP_VALUES = ("flops", "bytes_moved", "count", "input_elements_max", "output_elements")
_BATCH = MEMORY_COMPONENTS.index("batch_bytes")
_FLOPS, _OUTPUTS = OP_VALUES.index("flops"), OP_VALUES.index("output_elements")
PRECISION = {name: code for code, name in enumerate(PRECISIONS)}

# Approximate cost of a sample, and of a byte of it, if a step loads its data.
SAMPLE_S, BYTE_S = 5e-6, 1e-9

# Getters for operator statistics and memory, of the domain or the protocol: field names are equal.
op_class_key = attrgetter("kind", "phase", "shape")
op_values = attrgetter(*OP_VALUES)
memory_values = attrgetter(*MEMORY_COMPONENTS)


@dataclass(frozen=True, eq=False)
class JobTable:
    """Immutable table of jobs and of their operators, which follow one another job by job.

    Attributes
    ----------
    job_ids : tuple of str
    precisions : ndarray of int, shape (jobs,)
        Positions in ``PRECISIONS``.
    scalars : ndarray of shape (jobs, ``JOB_SCALARS``)
    op_counts : ndarray of int, shape (jobs,)
        Number of operator rows of each job, at least one.
    op_classes : ndarray of int, shape (ops,)
        Positions in ``OP_CLASSES``.
    op_values : ndarray of shape (``OP_VALUES``, ops)
    op_starts : ndarray of int, shape (jobs,)
        First operator row of each job.
    computed : dict of object to ndarray
        Cache of values computed from the table, by the object that computed them.
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
        """Return one of ``JOB_SCALARS``, shape (jobs,)."""
        return self.scalars[:, JOB_SCALARS.index(name)]

    def op_jobs(self) -> Ints:
        """Return the job of each operator row, shape (ops,)."""
        return np.arange(len(self)).repeat(self.op_counts)


def precision_codes(names: Iterable[str]) -> Ints:
    """Return the positions of precisions in ``PRECISIONS``."""
    return np.array([PRECISION[name] for name in names], dtype=np.intp)


def job_table(jobs: Sequence[JobFeatures]) -> JobTable:
    """Return jobs as a table, in order."""
    ops = list(chain.from_iterable([features.op_stats for features in jobs]))
    classes = map(OP_CLASS.__getitem__, map(op_class_key, ops))
    values = chain.from_iterable(map(op_values, ops))
    return job_table_from_rows(
        job_ids=[features.job.job_id for features in jobs],
        precisions=precision_codes([features.job.precision for features in jobs]),
        scalars=[
            job_scalars(features.job, features.parameters, memory_values(features.memory))
            for features in jobs
        ],
        op_counts=np.array([len(features.op_stats) for features in jobs], dtype=np.intp),
        op_classes=np.fromiter(classes, np.intp, len(ops)),
        op_values=np.fromiter(values, np.float64, len(ops) * len(OP_VALUES)),
    )


def job_scalars(job: Any, parameters: int, component_bytes: tuple[int, ...]) -> tuple[float, ...]:
    """Return the ``JOB_SCALARS`` of a job of the domain or the protocol.

    ``component_bytes`` are in the order of ``MEMORY_COMPONENTS``.
    """
    release = framework_release(job.framework_version)
    precision, batch_size, loads_data = job.precision, job.batch_size, job.loads_data
    channels_last = job.memory_format == "channels-last"
    return (
        1, batch_size, job.iterations, job.input_elements, precision in ("fp16", "bf16"),
        precision == "tf32", precision == "fp64", channels_last, release, release * channels_last,
        loads_data, (SAMPLE_S * batch_size + BYTE_S * component_bytes[_BATCH]) * loads_data,
        parameters, *component_bytes, peak_bytes(*component_bytes),
    )  # fmt: skip


def job_table_from_rows(
    *,
    job_ids: Sequence[str],
    precisions: Ints,
    scalars: Sequence[tuple[float, ...]],
    op_counts: Ints,
    op_classes: Ints,
    op_values: Array,
) -> JobTable:
    """Return the table of values that were read row by row.

    ``op_values`` holds ``OP_VALUES`` for each operator. Operators without a shape get the shape
    class that fits their row as a total.
    """
    values = np.ascontiguousarray(op_values.reshape(len(op_classes), len(OP_VALUES)).T)
    return JobTable(
        tuple(job_ids),
        precisions,
        np.array(scalars, dtype=np.float64).reshape(len(job_ids), len(JOB_SCALARS)),
        op_counts,
        infer_shape_classes(op_classes, flops=values[_FLOPS], output_elements=values[_OUTPUTS]),
        values,
        op_counts.cumsum() - op_counts,
    )


def _table_of_one(job: JobFeatures) -> JobTable:
    """Return the table of a single job; it is cached for the lifetime of the job."""
    return job_table([job])


JOB_TABLES = WeakCache(_table_of_one)
