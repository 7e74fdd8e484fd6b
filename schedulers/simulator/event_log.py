"""Everything that happened and was decided, in order: a line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from presage.schedulers.core.job import Job
from presage.schedulers.traces.columns import row_of

Entry = tuple[float, str, str, Any]  # when, what, whose, and whatever else there is to say


class EventLog:
    """Entries as they come; the same run writes the same bytes.

    A submission's is the job, of which a line has the columns of a trace; a refused decision's is
    why it was, and nothing of what was wanted.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def lines(self) -> Iterator[str]:
        """Each entry as a line."""
        for now_s, what, job_id, more in self.entries:
            told = row_of(more) if isinstance(more, Job) else more
            entry = {"s": now_s, "what": what, "job": job_id, "more": told}
            yield json.dumps({k: v for k, v in entry.items() if v != "" and v is not None})
