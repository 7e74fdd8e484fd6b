"""Trace of a cluster: its jobs and their durations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from presage.errors import InvalidJobError, TableError
from presage.schedulers.core.job import Job


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by submission time, and their traced durations.

    Policies see the jobs; the durations belong to the ground truth.

    Attributes
    ----------
    duration_s : Mapping[str, float]
        Traced duration by job id.
    left_out : Mapping[str, int]
        Number of skipped rows of the file, by reason.
    """

    jobs: tuple[Job, ...]
    duration_s: Mapping[str, float]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Entry(NamedTuple):
    """Job as read from a file.

    Attributes
    ----------
    where : str
        File and line, for error messages.
    submit_s : float
        Submission time by the clock of the file.
    fields : Mapping[str, Any]
        The other fields of :class:`Job`.
    """

    where: str
    job_id: str
    submit_s: float
    duration_s: float
    fields: Mapping[str, Any]


def make_trace(entries: Iterable[Entry | str], *, from_first: bool) -> Trace:
    """Return a trace of entries; a text is the reason for which a row is skipped.

    ``from_first`` counts times from the first submission.

    Raises
    ------
    TableError
        A job is invalid or a duplicate; the message names its line.
    """
    found: dict[str, Entry] = {}
    left_out: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry, str):
            left_out[entry] = left_out.get(entry, 0) + 1
        elif entry.job_id in found:
            raise TableError(
                f"{entry.where}: duplicate job_id {entry.job_id!r}; give each job its own"
            )
        else:
            found[entry.job_id] = entry
    first_s = min((one.submit_s for one in found.values()), default=0.0) if from_first else 0.0
    jobs = sorted((_job(one, first_s) for one in found.values()), key=lambda job: job.submit_s)
    return Trace(tuple(jobs), {one.job_id: one.duration_s for one in found.values()}, left_out)


def _job(entry: Entry, first_s: float) -> Job:
    try:
        return Job(job_id=entry.job_id, submit_s=entry.submit_s - first_s, **entry.fields)
    except InvalidJobError as error:
        raise TableError(f"{entry.where}: {error}") from None
