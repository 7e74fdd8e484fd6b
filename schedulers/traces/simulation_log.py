"""The log of ``presage simulate --log DIR``: jobs from their ``submit`` lines.

A job's duration is the seconds that it ran, as it was scheduled, in proportion where it had fewer
devices than it asked for: what it did twice after a failure, and what restarts cost it, is in
there; what it waited or was paused is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.schedulers.traces.columns import fields_of
from presage.schedulers.traces.row import MOST_S, Row
from presage.schedulers.traces.trace import Entry

_GIVEN = {"start", "resize", "migrate"}  # with the devices of each member
_GOES, _STOPS = _GIVEN | {"resume"}, {"preempt", "pause", "lost", "overflow", "finish"}


@dataclass(slots=True)
class _Run:
    """What became of a job."""

    job: Entry
    ran_s: float = 0.0
    since_s: float | None = None  # None while it does not run
    part: float = 1.0  # of the devices that it asked for
    end: str = ""

    def see(self, now_s: float, what: str, more: Any) -> None:
        if what in _GOES | _STOPS and self.since_s is not None:
            self.ran_s += (now_s - self.since_s) * self.part
            self.since_s = None
        if what in _GIVEN and isinstance(more, list):
            self.part = len(more) / self.job.fields["gpus"]
        if what in _GOES:
            self.since_s = now_s
        elif what in {"finish", "reject"}:
            self.end = what


def entries(path: Path, lines: Iterable[str]) -> Iterator[Entry | str]:
    """Jobs that finished, or why others are left out, in the order of their submission.

    Raises
    ------
    TableError
        A line is none of a log, or lacks what a job is made of.
    """
    runs: dict[str, _Run] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        now_s, what, job_id, more = _event(line, where)
        if what == "submit":
            if job_id in runs:
                raise TableError(f"{where}: job {job_id!r} for the second time")
            runs[job_id] = _Run(_submitted(path, number, now_s, job_id, more))
        elif job_id in runs:
            runs[job_id].see(now_s, what, more)
        elif job_id:
            raise TableError(f"{where}: job {job_id!r} was never submitted; read the whole log")
    for run in runs.values():
        if run.end == "finish":
            yield run.job._replace(duration_s=run.ran_s)
        else:
            yield "rejected" if run.end else "never finished"


def _event(line: str, where: str) -> tuple[float, str, str, Any]:
    try:
        said = json.loads(line)
        now_s, what, job_id = float(said["s"]), said["what"], said.get("job", "")
        if abs(now_s) <= MOST_S and isinstance(what, str) and isinstance(job_id, str):
            return now_s, what, job_id, said.get("more")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass
    raise TableError(
        f"{where}: is no event; each line of a log of `presage simulate` is such as "
        '{"s": 0.0, "what": "start", "job": "a"}, at most 1e12 seconds after 0'
    )


def _submitted(path: Path, line: int, now_s: float, job_id: str, more: Any) -> Entry:
    if not isinstance(more, dict):
        raise TableError(
            f"{path} line {line}: a submission without the job's columns; simulate it again"
        )
    cells = {k: str(v) for k, v in more.items()} | {"job_id": job_id, "submit": repr(now_s)}
    row = Row(path, line, line - 1, cells)
    return Entry(row.where, row.text("job_id"), row.seconds("submit"), 0.0, fields_of(row))
