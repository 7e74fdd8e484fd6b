"""Log of the jobs that have changed, for readers that return for what is new."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 200_000  # entries that are kept at least, once there are as many


class ChangeLog:
    """Ids of jobs in the order of their changes; a job may be in it several times."""

    __slots__ = ("_first", "_job_ids")

    def __init__(self) -> None:
        self._job_ids: list[str] = []
        self._first = 0  # number of the first entry that is kept

    @property
    def end(self) -> int:
        """Number of the next entry."""
        return self._first + len(self._job_ids)

    def note(self, job_id: str) -> None:
        """Add the change of a job."""
        self._job_ids.append(job_id)
        if len(self._job_ids) > 2 * MOST:
            del self._job_ids[:MOST]
            self._first += MOST

    def since(self, number: int) -> Sequence[str] | None:
        """Return the entries from a number on; None if some of them are not kept any more."""
        return None if number < self._first else self._job_ids[number - self._first :]
