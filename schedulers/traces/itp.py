"""Microsoft's ITP clusters (microsoft/elasticflow-traces), a job a row, in seconds.

``job_id,submission_time,duration,num_gpu``.
"""

from __future__ import annotations

from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def entry(row: Row) -> Entry | str:
    """A job; nobody said whose."""
    gpus = row.whole("num_gpu")
    if not gpus:
        return "without GPUs"
    return Entry(
        row.where,
        row.text("job_id"),
        row.seconds("submission_time"),
        row.seconds("duration"),
        {"gpus": gpus},
    )
