"""Messages between the ranks of a job, as bytes: a JSON object, and a sum where one is sent."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple, TypeAlias

from presage.collectives.core.messages import Outcome, Status, Vote
from presage.collectives.core.view import JobView

LENGTHS = struct.Struct("<IQ")  # of the JSON object and of the data
MAX_TEXT = 1 << 24


class Progress(NamedTuple):
    """AllReduce that a rank waits for; ``order`` counts all AllReduces of the job."""

    order: int
    size_bytes: int


class Goodbye(NamedTuple):
    """A rank leaves after it has completed all AllReduces before ``number``."""

    number: int


class Ballot(NamedTuple):
    """Vote with what belongs to it outside of the state machine.

    ``size_bytes`` is the size at the sender. ``data`` has the sum if the vote has a result.
    """

    vote: Vote
    size_bytes: int
    data: bytes = b""


PeerMessage: TypeAlias = Ballot | Status | Progress | Goodbye


def encode(message: PeerMessage) -> bytes:
    """Return a message as bytes."""
    data = message.data if isinstance(message, Ballot) else b""
    text = json.dumps(_fields(message), separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(data)) + text + data


def decode(text: bytes, data: bytes) -> PeerMessage:
    """Return the message in the two parts of its bytes.

    Raises
    ------
    ValueError
        They are no message.
    """
    try:
        kind, *fields = json.loads(text)
        return _message(kind, fields, data)
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"no message of a peer: {error}") from error


def _fields(message: PeerMessage) -> list[object]:
    match message:
        case Ballot(vote, size_bytes):
            return ["vote", *vote, size_bytes]
        case Status():
            view = message.view
            parts = [view.epoch, view.first_number, view.decisions.hex()] if view else None
            return ["status", *message[:-2], int(message.outcome), parts]
        case Progress():
            return ["progress", *message]
        case Goodbye():
            return ["goodbye", *message]


def _message(kind: str, values: list[Any], data: bytes) -> PeerMessage:
    if kind == "vote":
        *vote, size_bytes = values
        return Ballot(Vote(*vote), size_bytes, data)
    if kind == "status":
        *status, outcome, parts = values
        view = None
        if parts is not None:
            epoch, first, decisions = parts
            view = JobView(epoch, first, bytes.fromhex(decisions))
        job, sender, receiver, tag, number = status
        return Status(job, sender, receiver, tag, number, Outcome(outcome), view)
    if kind == "progress":
        return Progress(*values)
    if kind == "goodbye":
        return Goodbye(*values)
    raise ValueError(f"message of unknown kind {kind!r}")
