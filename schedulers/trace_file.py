"""A trace: csv with a job a line, ``job_id,submit,gpus,duration,model``, times in seconds."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from presage.features.errors import InvalidJobError, TableError
from presage.schedulers.job import Job

COLUMNS = ("job_id", "submit", "gpus", "duration")  # ``model`` may be left out


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by the time of their submission, and how long each ran when it was traced.

    The two are apart from here on: jobs are what policies see, durations what the world knows.
    """

    jobs: tuple[Job, ...]
    duration_s: dict[str, float]


def read_trace(path: Path) -> Trace:
    """Jobs of a csv file.

    Raises
    ------
    TableError
        The file or a column is missing, or a line is wrong; names the line and the column.
    """
    jobs: list[Job] = []
    duration_s: dict[str, float] = {}
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise TableError(
                    f"{path}: no column {missing[0]!r}; a trace has job_id, submit, gpus, "
                    "duration and perhaps model, with seconds"
                )
            for row in rows:
                where = f"{path} line {rows.line_num}"
                job_id, seconds = row["job_id"], _number(row, "duration", where)
                if job_id in duration_s:
                    raise TableError(f"{where}: job_id {job_id!r} for the second time")
                jobs.append(_job(row, where))
                duration_s[job_id] = seconds
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}); name a trace") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise TableError(f"{path}: is no csv ({error})") from None
    return Trace(tuple(sorted(jobs, key=lambda job: job.submit_s)), duration_s)


def _job(row: dict[str, str], where: str) -> Job:
    gpus = _number(row, "gpus", where)
    if gpus != int(gpus) or gpus < 1:
        raise TableError(f"{where}: gpus={row['gpus']}, must be a whole number >= 1; drop the row")
    try:
        return Job(
            job_id=row["job_id"],
            submit_s=_number(row, "submit", where),
            gpus=int(gpus),
            model=row.get("model") or "",
        )
    except InvalidJobError as error:
        raise TableError(f"{where}: {error}") from None


def _number(row: dict[str, str], column: str, where: str) -> float:
    text = row[column]
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TableError(
            f"{where}: {column}={text!r}, must be a number >= 0; mend the row, or drop it"
        )
    return value
