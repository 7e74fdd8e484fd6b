"""Moves of a leader: what it does next, as decided by the membership of its job."""

from __future__ import annotations

from dataclasses import dataclass

from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation


@dataclass(frozen=True, slots=True)
class Pause:
    """Request all members to pause after the current step."""


@dataclass(frozen=True, slots=True)
class End:
    """Close the ring of the current generation at once."""


@dataclass(frozen=True, slots=True)
class Form:
    """Journal and announce a generation, and release the workers that leave."""

    generation: Generation
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Save:
    """Request a worker to write a checkpoint, because too few workers are left."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Release workers that leave, while the others wait for more workers."""

    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is complete."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Suspend:
    """All workers leave: the job ends, to be continued from its checkpoint."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Fail:
    """The job cannot continue."""

    reason: str


Move = Pause | End | Form | Save | Release | Finish | Suspend | Fail
