"""The log of ``presage simulate --log DIR``: jobs from their ``submit`` lines.

A job's duration is the seconds that it ran, as it was scheduled: what it did twice after a failure,
and what restarts cost it, is in there; what it waited or was paused is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from presage.features.errors import TableError
from presage.schedulers.traces.columns import fields_of
from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry

_GOES, _STOPS = {"start", "resume"}, {"preempt", "pause", "lost", "overflow", "finish"}


def entries(path: Path, lines: Iterable[str]) -> Iterator[Entry | str]:
    """Jobs that finished, or why others are left out, in the order of their submission.

    Raises
    ------
    TableError
        A line is none of a log, or lacks what a job is made of.
    """
    jobs: dict[str, Entry] = {}
    going_s: dict[str, float] = {}  # since when it runs
    ran_s: dict[str, float] = {}
    ended: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        now_s, what, job_id, more = _event(line, f"{path} line {number}")
        if what == "submit":
            if job_id in jobs:
                raise TableError(f"{path} line {number}: job {job_id!r} for the second time")
            jobs[job_id] = _submitted(path, number, now_s, job_id, more)
        elif job_id and job_id not in jobs:
            raise TableError(
                f"{path} line {number}: job {job_id!r} was never submitted; read the whole log"
            )
        if what in _STOPS and job_id in going_s:
            ran_s[job_id] = ran_s.get(job_id, 0.0) + now_s - going_s.pop(job_id)
        if what in _GOES:
            going_s[job_id] = now_s
        elif what in {"finish", "reject"}:
            ended[job_id] = what
    for job_id, entry in jobs.items():
        if ended.get(job_id) == "finish":
            yield entry._replace(duration_s=ran_s.get(job_id, 0.0))
        else:
            yield "rejected" if job_id in ended else "never finished"


def _event(line: str, where: str) -> tuple[float, str, str, Any]:
    try:
        said = json.loads(line)
        now_s, what, job_id = float(said["s"]), said["what"], said.get("job", "")
        if math.isfinite(now_s) and isinstance(what, str) and isinstance(job_id, str):
            return now_s, what, job_id, said.get("more")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise TableError(
        f"{where}: is no event; each line of a log of `presage simulate` is such as "
        '{"s": 0.0, "what": "start", "job": "a"}'
    )


def _submitted(path: Path, line: int, now_s: float, job_id: str, more: Any) -> Entry:
    if not isinstance(more, dict):
        raise TableError(
            f"{path} line {line}: a submission without the job's columns; simulate it again"
        )
    cells = {k: str(v) for k, v in more.items()} | {"job_id": job_id, "submit": repr(now_s)}
    row = Row(path, line, line - 1, cells)
    return Entry(row.where, row.text("job_id"), row.seconds("submit"), 0.0, fields_of(row))
