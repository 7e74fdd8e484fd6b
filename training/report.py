"""What a worker reports to its leader."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf
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
    unreachable : str
        Id of the worker to which it could not connect; "" if none.
    """

    generation: int = 0
    phase: str = "joining"
    cursor: Cursor = field(default_factory=Cursor)
    has_state: bool = False
    is_broken: bool = False
    is_finished: bool = False
    unreachable: str = ""

    def to_message(self) -> dict[str, Any]:
        """Return the report as JSON content."""
        return {
            "generation": self.generation,
            "phase": self.phase,
            "cursor": self.cursor.to_message(),
            "has_state": self.has_state,
            "is_broken": self.is_broken,
            "is_finished": self.is_finished,
            "unreachable": self.unreachable,
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
                str(message["unreachable"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ElasticError(f"report of a worker is not valid: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a worker, as in its heartbeats.

    Attributes
    ----------
    generation : int
        Generation that it takes part in; 0 if none.
    cursor : Cursor
        Position up to which it has committed.
    age_s : float
        Seconds since it committed that position.
    done : float
        Committed fraction of all epochs, between 0 and 1.
    saved : float
        Fraction of all epochs in the last checkpoint that it wrote or read; 0 if none.
    """

    generation: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    age_s: float = 0.0
    done: float = 0.0
    saved: float = 0.0

    def to_message(self) -> dict[str, Any]:
        """Return the progress as JSON content."""
        return {**asdict(self), "cursor": self.cursor.to_message()}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Self:
        """Return the progress in a message; raises ElasticError if it is not valid."""
        try:
            age_s, done, saved = (float(message[name]) for name in ("age_s", "done", "saved"))
            if not (0 <= age_s < inf and 0 <= done <= 1 and 0 <= saved <= 1):
                raise ValueError(f"age_s={age_s}, done={done}, saved={saved}")
            cursor = Cursor.from_message(message["cursor"])
            return cls(int(message["generation"]), cursor, age_s, done, saved)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ElasticError(f"progress of a worker is not valid: {error!r}") from None
