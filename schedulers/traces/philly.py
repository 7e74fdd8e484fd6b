"""Philly (msr-fiddle/philly-traces), a job a row.

``timestamp,duration,num_gpus,gpu_time,cluster``. Times of day are local, and taken as they are: at
the end of summer time (5 November 2017) the clock was turned back, and an hour is missing.
"""

from __future__ import annotations

from datetime import datetime

from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_EPOCH = datetime(1970, 1, 1)


def entry(row: Row) -> Entry | str:
    """A job, named by its row; its user is the virtual cluster."""
    gpus = row.whole("num_gpus")
    if not gpus:
        return "without GPUs"
    return Entry(
        row.where,
        str(row.number),
        row.read("timestamp", _seconds, "a local time such as 2017-10-09 07:01:55"),
        row.seconds("duration"),
        {"gpus": gpus, "user": row.text("cluster")},
    )


def _seconds(text: str) -> float:
    time = datetime.fromisoformat(text)
    if time.tzinfo is not None:
        raise ValueError(text)
    return (time - _EPOCH).total_seconds()
