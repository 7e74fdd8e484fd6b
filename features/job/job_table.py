"""Many jobs as arrays: scalars of each job and the statistics of their operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from presage.features.columns.column import ONE
from presage.features.graph.op_class import OP_CLASS, OP_CLASSES, infer_shape_classes
from presage.features.graph.op_stats import OpStats
from presage.features.graph.step_memory import MEMORY_COMPONENTS, peak_bytes
from presage.features.job.framework_version import framework_release
from presage.features.job.job_description import MEMORY_FORMATS, PRECISIONS, JobFeatures
from presage.native import compiled
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
    classes, values = _operators(ops)
    return job_table_from_columns(
        job_ids=[features.job.job_id for features in jobs],
        precisions=precision_codes([features.job.precision for features in jobs]),
        scalars=[
            job_scalars(features.job, features.parameters, memory_values(features.memory))
            for features in jobs
        ],
        op_counts=np.array([len(features.op_stats) for features in jobs], dtype=np.intp),
        op_classes=classes,
        op_values=values,
    )


def _operators(ops: list[OpStats]) -> tuple[Ints, Matrix]:
    """Return positions in ``OP_CLASSES`` and, of shape (``OP_VALUES``, ops), the values."""
    if compiled.hot_path is not None:
        found = compiled.hot_path.read_operators(operator_reader(), ops)
        if found is not None:
            return np.frombuffer(found[0], np.intp), op_matrix(found[1])
    classes = map(OP_CLASS.__getitem__, map(op_class_key, ops))
    values = np.fromiter(chain.from_iterable(map(op_values, ops)), np.float64)
    by_value = np.ascontiguousarray(values.reshape(len(ops), len(OP_VALUES)).T)
    return np.fromiter(classes, np.intp, len(ops)), by_value


def op_matrix(content: bytes) -> Matrix:
    """Return ``op_values`` of a table from the bytes that the C extension returns."""
    return np.frombuffer(content, np.float64).reshape(len(OP_VALUES), -1)


@cache
def operator_reader() -> Any:
    """Return the names that the readers of the C extension need."""
    assert compiled.hot_path is not None
    formats = ("", *MEMORY_FORMATS)
    return compiled.hot_path.operator_reader(OP_CLASSES, PRECISIONS, formats, SAMPLE_S, BYTE_S)


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


def job_table_from_columns(
    *,
    job_ids: Sequence[str],
    precisions: Ints,
    scalars: Sequence[tuple[float, ...]] | Matrix,
    op_counts: Ints,
    op_classes: Ints,
    op_values: Matrix,
) -> JobTable:
    """Return the table of these values.

    ``op_values`` is contiguous and of shape (``OP_VALUES``, ops). Operators without a shape get the
    shape class that fits their row as a total.
    """
    return JobTable(
        tuple(job_ids),
        precisions,
        np.array(scalars, dtype=np.float64).reshape(len(job_ids), len(JOB_SCALARS)),
        op_counts,
        infer_shape_classes(
            op_classes, flops=op_values[_FLOPS], output_elements=op_values[_OUTPUTS]
        ),
        op_values,
        op_counts.cumsum() - op_counts,
    )


def _table_of_one(job: JobFeatures) -> JobTable:
    """Return the table of a single job; it is cached for the lifetime of the job."""
    return job_table([job])


JOB_TABLES = WeakCache(_table_of_one)
