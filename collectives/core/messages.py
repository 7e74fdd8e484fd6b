"""Messages of ranks, controller and switch. They are values; the transport is not part of the core.

Messages between ranks of a job (``Vote`` and ``Status``) need a transport that does not lose them
while both ranks live, like the connections of the ring itself. It may delay, reorder and duplicate
them. All other messages may be lost as well.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

from presage.collectives.core.view import JobView


class Member(NamedTuple):
    """One rank of a job of ``size`` ranks."""

    job: str
    rank: int
    size: int

    @property
    def peers(self) -> tuple[int, ...]:
        """Other ranks of the job."""
        return tuple(rank for rank in range(self.size) if rank != self.rank)


class Contribution(NamedTuple):
    """From a rank to the switch: its data for one AllReduce.

    ``epoch`` is that of the view by which the switch was chosen, ``newest`` that of the newest view
    the rank has. The switch returns the minimum of ``newest`` with the sum.
    """

    job: str
    rank: int
    size: int
    number: int
    epoch: int
    newest: int


class Result(NamedTuple):
    """From the switch to a rank: the sum, and the smallest of the contributed epochs."""

    job: str
    rank: int
    number: int
    min_epoch: int


class RefusalReason(enum.Enum):
    """Reason why the switch does not aggregate an AllReduce."""

    BUSY = "all slots are in use"
    STALE = "the job is not admitted, its epoch or number is old, or its ranks disagree on N"
    EVICTED = "the controller revoked the use, or the switch's lease ended"


class Refusal(NamedTuple):
    """From the switch to a rank: this AllReduce is not aggregated."""

    job: str
    rank: int
    number: int
    reason: RefusalReason


class Vote(NamedTuple):
    """From a rank to a peer: the AllReduce has failed on the switch, or has this result after all.

    ``min_epoch`` belongs to the result; it is None if the rank has none and will accept none.
    """

    job: str
    sender: int
    receiver: int
    number: int
    min_epoch: int | None


class ViewUpdate(NamedTuple):
    """From the controller to a rank (in-band): all views that its job may not have adopted yet."""

    job: str
    rank: int
    views: tuple[JobView, ...]


class Adopted(NamedTuple):
    """From a rank to the controller (in-band): later AllReduces use this epoch or newer ones."""

    job: str
    rank: int
    epoch: int


class Admission(NamedTuple):
    """From the controller to the switch: admitted jobs, and the oldest epoch accepted of each."""

    incarnation: int
    token: int
    floors: tuple[tuple[str, int], ...]


class Admitted(NamedTuple):
    """From the switch to the controller: the admission with this token is in force."""

    incarnation: int
    token: int


class Hello(NamedTuple):
    """From the switch to the controller: it has started and admits no job."""

    incarnation: int


class Prepare(NamedTuple):
    """From the controller to a rank (two-phase): take the lock."""

    job: str
    rank: int
    tag: int


class Ack(NamedTuple):
    """From a rank to the controller (two-phase): locked after this AllReduce."""

    job: str
    rank: int
    tag: int
    number: int


class Update(NamedTuple):
    """From the controller to a rank (two-phase): apply the view and unlock."""

    job: str
    rank: int
    tag: int
    view: JobView


class Abort(NamedTuple):
    """From the controller to a rank (two-phase): unlock and keep the view."""

    job: str
    rank: int
    tag: int


class Done(NamedTuple):
    """From a rank to the controller (two-phase): the round has ended at this rank."""

    job: str
    rank: int
    tag: int


class Status(NamedTuple):
    """From a rank to a peer (two-phase): its part in a round that the controller may have left.

    ``outcome`` is fixed when a rank first sends it for a tag. ``view`` is set if it is APPLIED.
    """

    job: str
    sender: int
    receiver: int
    tag: int
    number: int
    outcome: Outcome
    view: JobView | None


class Outcome(enum.IntEnum):
    """What a rank knows of a round of the two-phase protocol."""

    UNCERTAIN = 0  # acknowledged: only the controller or a peer knows
    ABORTED = 1
    APPLIED = 2


ToRank: TypeAlias = Result | Refusal | Vote | ViewUpdate | Prepare | Update | Abort | Status
ToController: TypeAlias = Adopted | Admitted | Hello | Ack | Done
ToSwitch: TypeAlias = Contribution | Admission
Message: TypeAlias = ToRank | ToController | ToSwitch
