"""Generation: the workers of an elastic job between two changes of its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from presage.training.data_set_grouping import Cursor

TRAIN, BREAKPOINT = "train", "breakpoint"  # entries into the training loop


@dataclass(frozen=True, slots=True)
class Member:
    """Worker of a generation, and the address at which other workers connect to it."""

    worker_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Workers of a job between two changes of its size; their order is their ranks.

    Attributes
    ----------
    number : int
        Increases with each generation, from 1.
    members : tuple of Member
        The first one has committed the most steps and is the source of the training state.
    receivers : tuple of str
        Ids of the members that receive the training state before the first step.
    cursor : Cursor
        Position at which the generation begins.
    entry : {"train", "breakpoint"}
        ``train`` if no step was committed and no other worker than the source has the parameters.
    """

    number: int
    members: tuple[Member, ...]
    receivers: tuple[str, ...]
    cursor: Cursor
    entry: str

    @property
    def source(self) -> Member:
        """Member that sends the training state."""
        return self.members[0]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.members)

    def rank_of(self, worker_id: str) -> int:
        """Return the rank of a worker; raises ValueError if it is not a member."""
        return [member.worker_id for member in self.members].index(worker_id)

    def has_member(self, worker_id: str) -> bool:
        """Whether a worker is a member."""
        return any(member.worker_id == worker_id for member in self.members)

    def to_message(self) -> dict[str, Any]:
        """Return the generation as JSON content."""
        return {
            "generation": self.number,
            "members": [[one.worker_id, one.host, one.port] for one in self.members],
            "receivers": list(self.receivers),
            "cursor": self.cursor.to_message(),
            "entry": self.entry,
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Self:
        """Return the generation in a message or a record of the journal."""
        return cls(
            int(message["generation"]),
            tuple(Member(str(i), str(host), int(port)) for i, host, port in message["members"]),
            tuple(map(str, message["receivers"])),
            Cursor.from_message(message["cursor"]),
            str(message["entry"]),
        )
