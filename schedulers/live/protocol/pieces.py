"""What is larger than a message may be, in pieces: submissions, and a node's orders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from presage.schedulers.live.protocol.wire import MOST_JOBS, MOST_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb

T = TypeVar("T", bound=Any)
# Each part of a list has a tag and a length before it; the rest of a message is small.
_PART_BYTES, _REST_BYTES = 16, 64 * 1024


def submit_requests(jobs: Sequence[pb.Job]) -> Iterator[pb.SubmitRequest]:
    """Yield requests that have all of the jobs, in order; one without any where there are none."""
    parts = list(_pieces(jobs, MOST_MESSAGE_BYTES, MOST_JOBS)) or [[]]
    for part in parts:
        yield pb.SubmitRequest(jobs=part)


def orders_in_pieces(
    orders: pb.NodeOrders, most_bytes: int = MOST_MESSAGE_BYTES
) -> Iterator[pb.NodeOrders]:
    """Yield orders as messages of at most so many bytes; all but the last say that more follow.

    Its tasks are what can be large; a task that alone is larger goes by itself.
    """
    if orders.ByteSize() <= most_bytes:
        yield orders
        return
    rest = pb.NodeOrders()
    rest.CopyFrom(orders)
    rest.ClearField("tasks")
    for part in _pieces(orders.tasks, most_bytes, len(orders.tasks)):
        yield pb.NodeOrders(tasks=part, version=orders.version, more=True)
    yield rest


def whole_orders(before: pb.NodeOrders | None, piece: pb.NodeOrders) -> pb.NodeOrders:
    """Return the orders so far, with one more piece of them."""
    if before is None:
        return piece
    before.MergeFrom(piece)
    before.more = piece.more
    return before


def _pieces(rows: Iterable[T], most_bytes: int, most: int) -> Iterator[list[T]]:
    part: list[T] = []
    size = _REST_BYTES
    for row in rows:
        bytes_of_row = row.ByteSize() + _PART_BYTES
        if part and (size + bytes_of_row > most_bytes or len(part) >= most):
            yield part
            part, size = [], _REST_BYTES
        part.append(row)
        size += bytes_of_row
    if part:
        yield part
