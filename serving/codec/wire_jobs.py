"""Conversion of many job messages at once to a table, without an object per operator.

The rules are those of :mod:`presage.serving.codec.wire_values`. Operators are compared with their
bounds as arrays; only the operators of a job with a value out of bounds are read one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

import numpy as np

from presage.errors import InvalidJobError, PresageError
from presage.features.graph.op_class import OP_CLASS
from presage.features.graph.op_stats import OP_BOUNDS
from presage.features.job.framework_version import framework_release
from presage.features.job.job_description import public_version
from presage.features.job.job_table import (
    JOB_SCALARS,
    OP_VALUES,
    JobTable,
    job_scalars,
    job_table_from_columns,
    op_class_key,
    op_matrix,
    operator_reader,
    precision_codes,
)
from presage.native import compiled
from presage.serving.codec.wire_values import MAX_OP_ROWS, MAX_TEXT, check_job, read_op_stats
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.arrays import Ints, Mask, Matrix

# The last two are not in the table, but must be within their bounds too.
_OP_NUMBERS = (*OP_VALUES, "input_elements", "parameters")
_LEAST, _MOST = np.array([OP_BOUNDS[name] for name in _OP_NUMBERS], dtype=np.float64).T
_NO_CLASS = -1

_op_numbers = attrgetter(*_OP_NUMBERS)


@dataclass(frozen=True, eq=False)
class ReadJobs:
    """Jobs of a request.

    Attributes
    ----------
    table : JobTable
        Valid jobs, in the order of the request.
    places : ndarray of int, shape (jobs of the request,)
        Position of each job in the table; -1 for an invalid job.
    errors : mapping of int to PresageError
        Error of each invalid job, by position in the request.
    """

    table: JobTable
    places: Ints
    errors: Mapping[int, PresageError]


def read_jobs(rows: Sequence[pb.Job], where: Callable[[int], str] = "jobs[{}]".format) -> ReadJobs:
    """Read jobs and their operator statistics; errors call the third job ``where(2)``."""
    texts: dict[int, str] = {}  # errors by job, without the place of the job
    scalars = _scalars(rows, texts)
    ops = list(chain.from_iterable([rows[i].op_stats for i in scalars]))
    op_counts = np.array([len(rows[i].op_stats) for i in scalars], dtype=np.intp)
    classes, numbers = _op_classes(ops), _numbers(ops)
    in_bounds = _in_bounds(classes, numbers)
    if not in_bounds.all():
        op_jobs = np.array(list(scalars)).repeat(op_counts)
        for i in np.unique(op_jobs[~in_bounds]).tolist():
            try:
                read_op_stats(rows[i])
            except InvalidJobError as error:
                texts[i] = str(error)
        good = np.array([i not in texts for i in scalars])
        is_used = good.repeat(op_counts)
        op_counts, classes, numbers = op_counts[good], classes[is_used], numbers[is_used]
    found = [i for i in scalars if i not in texts]
    table = job_table_from_columns(
        job_ids=[rows[i].job_id for i in found],
        precisions=precision_codes([rows[i].precision for i in found]),
        scalars=[scalars[i] for i in found],
        op_counts=op_counts,
        op_classes=classes,
        op_values=np.ascontiguousarray(numbers[:, : len(OP_VALUES)].T),
    )
    places = np.full(len(rows), -1)
    places[found] = np.arange(len(found))
    errors = {i: InvalidJobError(f"{where(i)}{texts[i]}") for i in sorted(texts)}
    return ReadJobs(table, places, errors)


def read_serialized_jobs(request: bytes) -> tuple[bytes, ReadJobs] | None:
    """Read the jobs of a serialized request by the C extension.

    Their field is number 1, as in ``PredictRequest`` and ``PredictInterferenceRequest``.

    Returns
    -------
    tuple of (bytes, ReadJobs), or None
        The request without its jobs, and the jobs. None if :func:`read_jobs` has to read them: a
        job is invalid or unusual, or the extension is not installed.
    """
    if compiled.hot_path is None:
        return None
    found = compiled.hot_path.read_jobs(
        operator_reader(), request, _find_release, MAX_TEXT, MAX_OP_ROWS
    )
    if found is None:
        return None
    rest, job_ids, precisions, scalars, op_counts, op_classes, op_values = found
    table = job_table_from_columns(
        job_ids=job_ids,
        precisions=np.frombuffer(precisions, np.intp),
        scalars=np.frombuffer(scalars).reshape(-1, len(JOB_SCALARS)),
        op_counts=np.frombuffer(op_counts, np.intp),
        op_classes=np.frombuffer(op_classes, np.intp),
        op_values=op_matrix(op_values),
    )
    return rest, ReadJobs(table, np.arange(len(job_ids)), {})


def _find_release(version: str) -> float | None:
    """Return the framework release of a version; None if the version is invalid."""
    return framework_release(version) if not version or public_version(version) else None


def _scalars(rows: Sequence[pb.Job], texts: dict[int, str]) -> dict[int, tuple[float, ...]]:
    """Return ``JOB_SCALARS`` by position, in order; put errors of the other jobs into ``texts``."""
    scalars: dict[int, tuple[float, ...]] = {}
    for i, row in enumerate(rows):
        try:
            scalars[i] = job_scalars(row, row.parameters, check_job(row))
        except InvalidJobError as error:
            texts[i] = str(error)
    return scalars


def _op_classes(ops: Sequence[pb.OpStats]) -> Ints:
    """Return positions in ``OP_CLASSES``, shape (ops,); ``_NO_CLASS`` for an unknown class."""
    classes = map(OP_CLASS.get, map(op_class_key, ops), repeat(_NO_CLASS))
    return np.fromiter(classes, np.intp, len(ops))


def _numbers(ops: Sequence[pb.OpStats]) -> Matrix:
    """Return numbers of operators, shape (ops, ``_OP_NUMBERS``)."""
    flat = chain.from_iterable(map(_op_numbers, ops))
    numbers = np.fromiter(flat, np.float64, len(ops) * len(_OP_NUMBERS))
    return numbers.reshape(len(ops), len(_OP_NUMBERS))


def _in_bounds(classes: Ints, numbers: Matrix) -> Mask:
    """Return which operators are within ``OP_BOUNDS`` and of a known class, shape (ops,)."""
    in_range = (numbers >= _LEAST) & (numbers <= _MOST)  # False for NaN
    in_bounds: Mask = (classes != _NO_CLASS) & in_range.all(axis=1)
    return in_bounds
