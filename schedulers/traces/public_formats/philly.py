"""Format of the Philly traces (msr-fiddle/philly-traces): one job a row.

``timestamp,duration,num_gpus,gpu_time,cluster``. Local times are used unchanged: at the end of
daylight saving time (5 November 2017) an hour is missing.
"""

from __future__ import annotations

from datetime import datetime

from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_EPOCH = datetime(1970, 1, 1)


def parse_entry(row: Row) -> Entry | str:
    """Return the job of a row, named by row number, or the reason to skip it.

    Its user is the virtual cluster.
    """
    gpus = row.count("num_gpus")
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
