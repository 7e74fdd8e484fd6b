"""Jobs of a cluster, and how long each of them ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from presage.errors import InvalidJobError, TableError
from presage.schedulers.core.job import Job


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by the time of their submission, and how long each ran when it was traced.

    The two are apart from here on: jobs are what policies see, durations what the world knows.

    Attributes
    ----------
    left_out : Mapping[str, int]
        Why rows of the file are no jobs here, and how many.
    """

    jobs: tuple[Job, ...]
    duration_s: Mapping[str, float]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Entry(NamedTuple):
    """A job as it is written down.

    Attributes
    ----------
    where : str
        File and line, for what is wrong with it.
    submit_s : float
        By the clock of the file.
    fields : Mapping[str, Any]
        The other fields of :class:`Job`.
    """

    where: str
    job_id: str
    submit_s: float
    duration_s: float
    fields: Mapping[str, Any]


def trace_of(entries: Iterable[Entry | str], *, from_first: bool) -> Trace:
    """A trace of entries, or of the reasons why a row is left out.

    ``from_first`` counts times from the first submission.

    Raises
    ------
    TableError
        A job cannot be, or is there for the second time; names its line.
    """
    found: dict[str, Entry] = {}
    left_out: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry, str):
            left_out[entry] = left_out.get(entry, 0) + 1
        elif entry.job_id in found:
            raise TableError(
                f"{entry.where}: job_id {entry.job_id!r} for the second time; give each its own"
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
