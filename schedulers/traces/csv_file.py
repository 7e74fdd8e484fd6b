"""Presage's CSV format: ``job_id,submit,gpus,duration`` in seconds, and the optional columns."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

from presage.errors import TableError
from presage.schedulers.traces.columns import OPTIONAL, REQUIRED, parse_fields, to_row
from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry, Trace


def parse_entry(row: Row) -> Entry:
    """Return the job of a row."""
    return Entry(
        row.where,
        row.text("job_id"),
        row.seconds("submit"),
        row.seconds("duration"),
        parse_fields(row),
    )


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace, with the columns that its jobs use.

    Raises
    ------
    TableError
        A name contains a carriage return, or is not valid UTF-8.
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
    if "\r" in text.getvalue():  # Python writes it without quotes
        raise TableError(f"{path}: a name of a job, user or model has a carriage return; remove it")
    try:
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
    except UnicodeEncodeError as error:
        invalid = error.object[error.start : error.end]
        raise TableError(f"{path}: {invalid!r} in a name is not UTF-8; change the name") from None
