"""Format of the logs of ``presage simulate --log DIR``: jobs from their ``submit`` lines.

A job's duration is its running time as scheduled, scaled down in proportion where it had fewer
devices than requested. It includes work repeated after a failure and restart costs, but no time in
the queue or paused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import TableError
from presage.schedulers.traces.columns import parse_fields
from presage.schedulers.traces.row import MOST_S, Row
from presage.schedulers.traces.trace import Entry

_ALLOCATES = {"start", "resize", "migrate", "shrink"}  # events that list the allocations
_RUNS, _STOPS = _ALLOCATES | {"resume"}, {"preempt", "pause", "lost", "overflow", "finish"}


@dataclass(slots=True)
class _Run:
    """Running time and end of a job."""

    job: Entry
    ran_s: float = 0.0
    since_s: float | None = None  # None while it does not run
    device_share: float = 1.0  # of the requested devices
    end: str = ""

    def apply(self, now_s: float, event: str, details: Any) -> None:
        """Apply an event of the job."""
        if event in _RUNS | _STOPS and self.since_s is not None:
            self.ran_s += (now_s - self.since_s) * self.device_share
            self.since_s = None
        if event in _ALLOCATES and isinstance(details, list):
            self.device_share = len(details) / self.job.fields["gpus"]
        if event in _RUNS:
            self.since_s = now_s
        elif event in {"finish", "reject"}:
            self.end = event


def entries(path: Path, lines: Iterable[str]) -> Iterator[Entry | str]:
    """Yield the finished jobs, or the reasons to skip others, in the order of submission.

    Raises
    ------
    TableError
        A line is not an event, or a job is incomplete, submitted twice or not submitted.
    """
    runs: dict[str, _Run] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        now_s, event, job_id, details = _parse_event(line, where)
        if event == "submit":
            if job_id in runs:
                raise TableError(f"{where}: job {job_id!r} is submitted twice; simulate again")
            runs[job_id] = _Run(_parse_submission(path, number, now_s, job_id, details))
        elif job_id in runs:
            runs[job_id].apply(now_s, event, details)
        elif job_id:
            raise TableError(f"{where}: job {job_id!r} was never submitted; read the complete log")
    for run in runs.values():
        if run.end == "finish":
            yield run.job._replace(duration_s=run.ran_s)
        else:
            yield "rejected" if run.end else "never finished"


def _parse_event(line: str, where: str) -> tuple[float, str, str, Any]:
    try:
        entry = json.loads(line)
        now_s, event, job_id = float(entry["time_s"]), entry["event"], entry.get("job_id", "")
        if abs(now_s) <= MOST_S and isinstance(event, str) and isinstance(job_id, str):
            return now_s, event, job_id, entry.get("details")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass
    raise TableError(
        f"{where}: is not an event; a line of a log of `presage simulate` looks like "
        '{"time_s": 0.0, "event": "start", "job_id": "a"}, at most 1e12 seconds after 0'
    )


def _parse_submission(path: Path, line: int, now_s: float, job_id: str, details: Any) -> Entry:
    if not isinstance(details, dict):
        raise TableError(
            f"{path} line {line}: a submission without the job's columns; simulate it again"
        )
    cells = {k: str(v) for k, v in details.items()} | {"job_id": job_id, "submit": repr(now_s)}
    row = Row(path, line, line - 1, cells)
    return Entry(row.where, row.text("job_id"), row.seconds("submit"), 0.0, parse_fields(row))
