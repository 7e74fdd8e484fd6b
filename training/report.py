"""What a worker reports to its leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor

PHASES = ("joining", "ready", "running", "paused")


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports.

    Attributes
    ----------
    generation : int
        Last generation that it takes part in; 0 if none.
    phase : {"joining", "ready", "running", "paused"}
        ``ready`` means that it waits for its first generation.
    cursor : Cursor
        Position up to which it has committed.
    has_state : bool
        Whether it has the job's parameters at that position.
    is_broken : bool
        Whether it is paused because its ring was closed.
    is_finished : bool
        Whether it is paused because no step is left.
    """

    generation: int = 0
    phase: str = "joining"
    cursor: Cursor = field(default_factory=Cursor)
    has_state: bool = False
    is_broken: bool = False
    is_finished: bool = False

    def to_message(self) -> dict[str, Any]:
        """Return the report as JSON content."""
        return {
            "generation": self.generation,
            "phase": self.phase,
            "cursor": self.cursor.to_message(),
            "has_state": self.has_state,
            "is_broken": self.is_broken,
            "is_finished": self.is_finished,
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Self:
        """Return the report in a message; raises ElasticError if it is not valid."""
        try:
            if message["phase"] not in PHASES:
                raise ElasticError(f"unknown phase {message['phase']!r} of a worker")
            return cls(
                int(message["generation"]),
                str(message["phase"]),
                Cursor.from_message(message["cursor"]),
                message["has_state"] is True,
                message["is_broken"] is True,
                message["is_finished"] is True,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ElasticError(f"report of a worker is not valid: {error!r}") from None
