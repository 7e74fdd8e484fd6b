"""Messages of the core on the protocol of the arbiter.

Job and rank of a message are those of its stream, never what the message says.
"""

from __future__ import annotations

from presage.collectives.core import messages as core
from presage.collectives.core.view import JobView, Reason
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError

MAX_MESSAGE_BYTES = 1 << 20
MAX_EPOCH = 2**63 - 1  # also the highest number of an AllReduce
MAX_WINDOW = 1 << 16  # entries of a table
_REASONS = frozenset(Reason)


def view_to_wire(view: JobView) -> pb.JobView:
    """Return a table as a message."""
    return pb.JobView(epoch=view.epoch, first_number=view.first_number, decisions=view.decisions)


def view_from_wire(message: pb.JobView) -> JobView:
    """Return the table in a message; raise InvalidRequestError if there can be no such table."""
    if max(message.epoch, message.first_number) > MAX_EPOCH or len(message.decisions) > MAX_WINDOW:
        raise InvalidRequestError("a table has an epoch, number or length that is out of range")
    if not _REASONS.issuperset(message.decisions):
        raise InvalidRequestError("a table has an unknown reason")
    return JobView(message.epoch, message.first_number, message.decisions)


def to_arbiter(message: core.ToController) -> pb.RankMessage:
    """Return a message of a rank to the controller; messages of a switch are not sent this way."""
    match message:
        case core.Adopted():
            return pb.RankMessage(adopted=pb.Adopted(epoch=message.epoch))
        case core.Ack():
            return pb.RankMessage(ack=pb.Ack(tag=message.tag, number=message.number))
        case core.Done():
            return pb.RankMessage(done=pb.Done(tag=message.tag))
    raise ValueError(f"{type(message).__name__} is not a message of a rank")


def from_rank(message: pb.RankMessage, job: str, rank: int) -> core.ToController | None:
    """Return what a rank sends to the controller; None if the message is none of these.

    Raises
    ------
    InvalidRequestError
        A number is out of range.
    """
    match message.WhichOneof("content"):
        case "adopted":
            return core.Adopted(job, rank, _epoch(message.adopted.epoch))
        case "ack":
            number = message.ack.number
            if not -1 <= number <= MAX_EPOCH:
                raise InvalidRequestError(f"number {number} is out of range")
            return core.Ack(job, rank, _epoch(message.ack.tag), number)
        case "done":
            return core.Done(job, rank, _epoch(message.done.tag))
    return None


def to_rank(message: core.ToRank) -> pb.ArbiterMessage:
    """Return a message of the controller to a rank."""
    match message:
        case core.ViewUpdate():
            views = [view_to_wire(view) for view in message.views]
            return pb.ArbiterMessage(view_update=pb.ViewUpdate(views=views))
        case core.Prepare():
            return pb.ArbiterMessage(prepare=pb.Prepare(tag=message.tag))
        case core.Update():
            update = pb.Update(tag=message.tag, view=view_to_wire(message.view))
            return pb.ArbiterMessage(update=update)
        case core.Abort():
            return pb.ArbiterMessage(abort=pb.Abort(tag=message.tag))
    raise ValueError(f"{type(message).__name__} is not a message of the controller to a rank")


def from_arbiter(message: pb.ArbiterMessage, job: str, rank: int) -> core.ToRank | None:
    """Return what the controller sends to a rank; None if the message is none of these.

    Raises
    ------
    InvalidRequestError
        A table is out of range.
    """
    match message.WhichOneof("content"):
        case "view_update":
            views = tuple(view_from_wire(view) for view in message.view_update.views)
            return core.ViewUpdate(job, rank, views)
        case "prepare":
            return core.Prepare(job, rank, message.prepare.tag)
        case "update":
            update = message.update
            return core.Update(job, rank, update.tag, view_from_wire(update.view))
        case "abort":
            return core.Abort(job, rank, message.abort.tag)
    return None


def _epoch(value: int) -> int:
    if value > MAX_EPOCH:
        raise InvalidRequestError(f"epoch {value} is out of range")
    return value
