"""What the journal of a leader says about its job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.leader.journal import Record


@dataclass(slots=True)
class JobRecord:
    """State of a job as in its journal.

    Attributes
    ----------
    specification : dict, optional
        What the workers train.
    size : int
        Requested number of workers; 0 without a resize.
    names : frozenset of str, optional
        Names of the workers that may take part; None for all.
    generation : Generation, optional
        Last generation.
    is_adopted : bool
        Whether that generation is one that a worker reported.
    formed : int
        Last generation whose members all had the training state.
    committed : Cursor
        Position at which that generation began.
    released : set of str
        Ids of workers that were released.
    outcome, reason : str
        "", "done", "failed" or "suspended", and why.
    """

    specification: dict[str, Any] | None = None
    size: int = 0
    names: frozenset[str] | None = None
    generation: Generation | None = None
    is_adopted: bool = False
    formed: int = 0
    committed: Cursor = field(default_factory=Cursor)
    released: set[str] = field(default_factory=set)
    outcome: str = ""
    reason: str = ""


def replay(records: Iterable[Record]) -> JobRecord:
    """Return the state of a job after the records of its journal."""
    job = JobRecord()
    for record in records:
        match record["type"]:
            case "job":
                job.specification = record["specification"]
            case "resize":
                names = record["names"]
                job.size = int(record["workers"])
                job.names = None if names is None else frozenset(names)
            case "adopted":
                job.generation, job.is_adopted = Generation.from_message(record), True
            case "generation":
                job.generation, job.is_adopted = Generation.from_message(record), False
                job.released.update(record["released"])
            case "released":
                job.released.update(record["released"])
            case "formed":
                job.formed = int(record["generation"])
                job.committed = Cursor.from_message(record["cursor"])
            case "done" | "failed" | "suspended":
                job.outcome, job.reason = record["type"], record["reason"]
                job.committed = Cursor.from_message(record["cursor"])
    return job
