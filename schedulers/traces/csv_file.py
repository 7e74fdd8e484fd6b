"""Our own csv: ``job_id,submit,gpus,duration``, in seconds, and optional columns (columns.py)."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

from presage.errors import TableError
from presage.schedulers.traces.columns import OPTIONAL, REQUIRED, fields_of, to_row
from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry, Trace


def entry(row: Row) -> Entry:
    """A job."""
    return Entry(
        row.where,
        row.text("job_id"),
        row.seconds("submit"),
        row.seconds("duration"),
        fields_of(row),
    )


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace, with the columns that are used; what was left out of it is not kept.

    Raises
    ------
    TableError
        A name in it is no text that a file can hold.
    """
    rows = [
        {"job_id": job.job_id, "submit": job.submit_s, "duration": trace.duration_s[job.job_id]}
        | to_row(job)
        for job in trace.jobs
    ]
    used = {name for row in rows for name in row}
    columns = [*REQUIRED, *(name for name in OPTIONAL if name in used)]
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if "\r" in text.getvalue():  # which Python writes without quotes
        raise TableError(f"{path}: a carriage return in the name of a job, user or model; drop it")
    try:
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        raise TableError(f"{path}: {wrong!r} in a name is no text; name it otherwise") from None
