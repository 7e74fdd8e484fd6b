"""Format of Microsoft's ITP traces (microsoft/elasticflow-traces): one job a row, in seconds.

``job_id,submission_time,duration,num_gpu``.
"""

from __future__ import annotations

from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def parse_entry(row: Row) -> Entry | str:
    """Return the job of a row, or the reason to skip it; users are unknown."""
    gpus = row.count("num_gpu")
    if not gpus:
        return "without GPUs"
    return Entry(
        row.where,
        row.text("job_id"),
        row.seconds("submission_time"),
        row.seconds("duration"),
        {"gpus": gpus},
    )
