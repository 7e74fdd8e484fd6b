"""Many jobs read off the wire at once: straight into a table, with no object for each operator.

Which jobs there may be is for :func:`presage.serving.codec.wire.read_job` to say. Here it is only
found out, of all of them side by side, which it would refuse; these it then reads, for its words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

import numpy as np

from presage.errors import PresageError, without_frames
from presage.features.arrays import Ints, Mask, Matrix
from presage.features.graph.op_class import OP_CLASS
from presage.features.graph.op_graph import MAX_COUNT
from presage.features.job.job import MEMORY_FORMATS, memory_from_peak, public_version
from presage.features.job.job_table import (
    JOB_SCALARS,
    OP_VALUES,
    PRECISION,
    JobTable,
    job_scalars,
    job_table_from_rows,
    memory_values,
    op_class_key,
    precision_codes,
)
from presage.serving.codec.wire import JOB_TEXTS, MAX_OP_ROWS, MAX_TEXT, read_job
from presage.serving.v1 import prediction_pb2 as pb

# The last two are in no table, but have to be numbers of operators all the same.
_OP_NUMBERS = (*OP_VALUES, "input_elements", "parameters")
_COUNT = OP_VALUES.index("count")
_PEAK = JOB_SCALARS.index("peak_live_bytes")
_FORMATS = ("", *MEMORY_FORMATS)
_NO_CLASS = -1

_texts = attrgetter(*JOB_TEXTS)
_op_numbers = attrgetter(*_OP_NUMBERS)


@dataclass(frozen=True, eq=False)
class ReadJobs:
    """Jobs of a request.

    Attributes
    ----------
    table : JobTable
        Those that can exist, in the order of the request.
    places : ndarray of int, shape (jobs of the request,)
        Position of each in the table; -1 where there is an error.
    errors : mapping of int to PresageError
        Why a job cannot exist, by its position in the request.
    """

    table: JobTable
    places: Ints
    errors: Mapping[int, PresageError]


def read_jobs(rows: Sequence[pb.Job], where: Callable[[int], str] = "jobs[{}]".format) -> ReadJobs:
    """Jobs and their operator statistics; errors call the third ``where(2)``."""
    scalars = [_scalars(row) for row in rows]
    asked = np.array([found is not None for found in scalars], dtype=np.bool_)
    op_counts = np.array([len(row.op_stats) for row in rows], dtype=np.intp) * asked
    ops = list(
        chain.from_iterable([row.op_stats for row, of in zip(rows, scalars, strict=True) if of])
    )
    classes, numbers = _op_classes(ops), _numbers(ops)
    op_jobs = np.arange(len(rows)).repeat(op_counts)
    good = asked.copy()
    good[op_jobs[~_can_be(classes, numbers)]] = False
    kept = good[op_jobs]
    found = np.flatnonzero(good).tolist()
    table = job_table_from_rows(
        job_ids=[rows[i].job_id for i in found],
        precisions=precision_codes([rows[i].precision for i in found]),
        scalars=[of for of, can_be in zip(scalars, good, strict=True) if of and can_be],
        op_counts=op_counts[good],
        op_classes=classes[kept],
        op_values=numbers[kept, : len(OP_VALUES)],
    )
    places = np.where(good, good.cumsum() - 1, -1)
    errors = {i: _error(rows[i], where(i)) for i in np.flatnonzero(~good).tolist()}
    return ReadJobs(table, places, errors)


def _scalars(row: pb.Job) -> tuple[float, ...] | None:
    """``JOB_SCALARS`` of a job; None if it cannot exist, whatever its operators are."""
    version, parameters = row.framework_version, row.parameters
    if (
        max(map(len, _texts(row))) > MAX_TEXT
        or not 1 <= len(row.op_stats) <= MAX_OP_ROWS
        or min(row.batch_size, row.iterations, row.input_elements) < 1
        or row.precision not in PRECISION
        or row.memory_format not in _FORMATS
        or (version and not public_version(version))
        or parameters < 0
    ):
        return None
    if row.HasField("memory"):
        held = memory_values(row.memory)
    elif row.peak_live_bytes >= 0:
        held = memory_values(memory_from_peak(parameters, row.peak_live_bytes))
    else:
        return None
    scalars = job_scalars(row, parameters, held)
    return scalars if min(held) >= 0 and scalars[_PEAK] <= MAX_COUNT else None


def _op_classes(ops: Sequence[pb.OpStats]) -> Ints:
    """Shape (ops,); ``_NO_CLASS`` where kind, phase or shape are not known."""
    classes = map(OP_CLASS.get, map(op_class_key, ops), repeat(_NO_CLASS))
    return np.fromiter(classes, np.intp, len(ops))


def _numbers(ops: Sequence[pb.OpStats]) -> Matrix:
    """Shape (ops, ``_OP_NUMBERS``)."""
    flat = chain.from_iterable(map(_op_numbers, ops))
    numbers = np.fromiter(flat, np.float64, len(ops) * len(_OP_NUMBERS))
    return numbers.reshape(len(ops), len(_OP_NUMBERS))


def _can_be(classes: Ints, numbers: Matrix) -> Mask:
    """Which operators can be, shape (ops,). Written so that nan cannot."""
    in_range = (numbers >= 0) & (numbers <= sys.float_info.max)
    can_be: Mask = (classes != _NO_CLASS) & in_range.all(axis=1) & (numbers[:, _COUNT] >= 1)
    return can_be


def _error(row: pb.Job, where: str) -> PresageError:
    try:
        read_job(row, where)
    except PresageError as error:
        return without_frames(error)
    raise AssertionError(f"{where} was taken for one that cannot be read")
