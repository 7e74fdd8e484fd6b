"""Event log of a simulation: events and decisions in order, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from presage.schedulers.core.job import Job
from presage.schedulers.traces.columns import to_row

Entry = tuple[float, str, str, Any]  # time in seconds, event, job id, details


class EventLog:
    """Log of a simulation; two equal runs write the same bytes.

    The details of a submission are the job, written with the columns of a trace. The details of a
    refused decision are only the reason, without the requested actions.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def lines(self) -> Iterator[str]:
        """Yield each entry as a line of JSON, without empty values."""
        for now_s, event, job_id, details in self.entries:
            value = to_row(details) if isinstance(details, Job) else details
            entry = {"time_s": now_s, "event": event, "job_id": job_id, "details": value}
            yield json.dumps({k: v for k, v in entry.items() if v != "" and v is not None})
