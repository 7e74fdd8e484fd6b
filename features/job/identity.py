"""Identity of jobs: digests that are equal for equal jobs, independent of their ids.

A scheduler gives every run its own id. If folds were drawn by that id, a job that ran a thousand
times would be in the training and the test data at once. A job is therefore identified by what a
step computes: its operators, batch, precision, input and layout (decision 24).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from itertools import groupby
from operator import attrgetter

from presage.features.graph.op_stats import OpStats
from presage.features.job.job_description import JobFeatures

_CLASS = attrgetter("kind", "phase", "intensity_octave", "shape")
_VALUES = attrgetter(*(field.name for field in fields(OpStats)))  # ten times as fast as astuple


def merge_op_stats(op_stats: Iterable[OpStats]) -> tuple[OpStats, ...]:
    """Return sorted statistics with one row for each kind, phase, octave and shape.

    Raises
    ------
    InvalidJobError
        A sum exceeds the range of a row.
    """
    ordered = sorted(op_stats, key=lambda row: (_CLASS(row), _VALUES(row)))
    return tuple(_sum(tuple(rows)) for _, rows in groupby(ordered, key=_CLASS))


def graph_digest(op_stats: tuple[OpStats, ...]) -> str:
    """Return the digest of merged statistics."""
    return _digest([_VALUES(row) for row in op_stats])


def job_digest(features: JobFeatures, graph: str) -> str:
    """Return the digest of a job's step; ``graph`` is the digest of its merged statistics."""
    job = features.job
    return _digest(
        [graph, job.batch_size, job.precision, job.input_elements, job.memory_format,
         job.loads_data]
    )  # fmt: skip


def _sum(rows: tuple[OpStats, ...]) -> OpStats:
    if len(rows) == 1:
        return rows[0]
    first = rows[0]
    return OpStats(
        first.kind,
        first.phase,
        first.intensity_octave,
        count=sum(row.count for row in rows),
        input_elements_max=max(row.input_elements_max for row in rows),
        input_elements=sum(row.input_elements for row in rows),
        output_elements=sum(row.output_elements for row in rows),
        flops=sum(row.flops for row in rows),
        bytes_moved=sum(row.bytes_moved for row in rows),
        parameters=sum(row.parameters for row in rows),
        shape=first.shape,
    )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
