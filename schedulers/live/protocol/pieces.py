"""Splitting of large submissions and orders into messages of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from presage.schedulers.live.protocol.wire import MAX_JOBS, MAX_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb

T = TypeVar("T", bound=Any)
# Each element of a list has a tag and a length; the rest of a message is small.
_PART_BYTES, _REST_BYTES = 16, 64 * 1024


def submit_requests(jobs: Sequence[pb.Job]) -> Iterator[pb.SubmitRequest]:
    """Yield requests with all of the jobs, in order; an empty request if there are none."""
    parts = list(_pieces(jobs, MAX_MESSAGE_BYTES, MAX_JOBS)) or [[]]
    for part in parts:
        yield pb.SubmitRequest(jobs=part)


def split_commands(
    orders: pb.NodeCommands, max_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[pb.NodeCommands]:
    """Yield orders as messages of limited size; all but the last have ``has_more`` set.

    Only the list of tasks is split; a task that exceeds the limit is sent by itself.
    """
    if orders.ByteSize() <= max_bytes:
        yield orders
        return
    rest = pb.NodeCommands()
    rest.CopyFrom(orders)
    rest.ClearField("tasks")
    for part in _pieces(orders.tasks, max_bytes, len(orders.tasks)):
        yield pb.NodeCommands(tasks=part, version=orders.version, has_more=True)
    yield rest


def merge_commands(received: pb.NodeCommands | None, piece: pb.NodeCommands) -> pb.NodeCommands:
    """Return the orders received so far, extended by a piece."""
    if received is None:
        return piece
    received.MergeFrom(piece)
    received.has_more = piece.has_more
    return received


def _pieces(rows: Iterable[T], max_bytes: int, max_rows: int) -> Iterator[list[T]]:
    part: list[T] = []
    size = _REST_BYTES
    for row in rows:
        row_bytes = row.ByteSize() + _PART_BYTES
        if part and (size + row_bytes > max_bytes or len(part) >= max_rows):
            yield part
            part, size = [], _REST_BYTES
        part.append(row)
        size += row_bytes
    if part:
        yield part
