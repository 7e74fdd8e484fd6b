"""Synchronous accumulation: the sum of all workers' gradients, by a ring of TCP connections.

Each of N workers sends to the next worker of the ring 2(N - 1) times. In the first N - 1
iterations a received chunk is added, in the second N - 1 it replaces. Afterwards all buffers are
the same sum.

Each chunk has a header with flags, which every worker combines by OR and forwards. After the first
N - 1 iterations each worker has the flags of all, so all workers decide the same at the end of a
step without another message.

Another thread can close the ring at any time; the sum then raises :class:`RingClosedError`. When a
worker dies, its neighbours close their ring, their neighbours notice that, and so on.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from presage.errors import ElasticError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_WORKERS = 64  # bits of the mask of workers in a header
BUFFER_BYTES = 4 << 20
_HEADER = struct.Struct("<QQIIQQ")  # generation, step, iteration, flags, mask, payload bytes
_POLL_MS = 1000


class RingClosedError(ElasticError):
    """The ring was closed during a sum, because a worker ended or left."""


class Flags(NamedTuple):
    """What travels with a sum.

    Attributes
    ----------
    pause : bool
        Whether a worker has a request to pause after this step.
    stop : bool
        Whether a worker ends the training after this step.
    not_finite : int
        Bit r is set if worker r has a gradient with NaN or infinity.
    """

    pause: bool = False
    stop: bool = False
    not_finite: int = 0

    def union(self, other: Flags) -> Flags:
        """Return the flags that are set in either."""
        return Flags(
            self.pause or other.pause, self.stop or other.stop, self.not_finite | other.not_finite
        )


class Ring:
    """Ring of the workers of one generation.

    Parameters
    ----------
    rank, size : int
        Place of this worker, and the number of workers (at least 2).
    to_next, from_previous : socket.socket
        Connections to the neighbours. The ring closes them.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        generation: int,
        to_next: socket.socket,
        from_previous: socket.socket,
    ) -> None:
        if not 1 < size <= MAX_WORKERS:
            raise ElasticError(f"a ring has 2 to {MAX_WORKERS} workers, not {size}")
        self.rank, self.size, self.generation = rank, size, generation
        self.sends = 0
        self._out, self._in = to_next, from_previous
        for connection in (to_next, from_previous):
            _prepare(connection)
        self._is_closed = False
        self._scratch = np.zeros(0, np.float32)

    def all_reduce(self, buffer: NDArray[np.floating], step: int, flags: Flags) -> Flags:
        """Replace ``buffer`` by the sum of all workers' buffers; return the union of their flags.

        Parameters
        ----------
        buffer : ndarray of shape (n,)
            Contiguous; the same length and type on all workers.
        step : int
            Number of the step, which must be the same on all workers.

        Raises
        ------
        RingClosedError
            The ring was closed. The content of the buffer is undefined.
        ElasticError
            A neighbour is at another step or has a buffer of another size.
        """
        chunks = [buffer[start:end] for start, end in _chunk_bounds(len(buffer), self.size)]
        largest = max(map(len, chunks))
        if len(self._scratch) < largest or self._scratch.dtype != buffer.dtype:
            self._scratch = np.zeros(largest, buffer.dtype)
        last = self.size - 1
        for iteration in range(2 * last):
            is_adding = iteration < last
            sent = chunks[(self.rank - iteration) % self.size]
            received = chunks[(self.rank - iteration - 1) % self.size]
            target = self._scratch[: len(received)] if is_adding else received
            flags = flags.union(self._exchange(sent, target, (step, iteration), flags))
            if is_adding:
                np.add(received, target, out=received)
        return flags

    def close(self) -> None:
        """Close both connections, also while another thread is in :meth:`all_reduce`."""
        self._is_closed = True
        for connection in (self._out, self._in):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _exchange(
        self,
        sent: NDArray[np.floating],
        target: NDArray[np.floating],
        place: tuple[int, int],
        flags: Flags,
    ) -> Flags:
        """Send a chunk to the next worker while receiving one from the previous worker."""
        bits = flags.pause | flags.stop << 1
        own = (self.generation, *place, bits, flags.not_finite, sent.nbytes)
        header = bytearray(_HEADER.size)
        outgoing = [memoryview(_HEADER.pack(*own)), _bytes_of(sent)]
        incoming = [memoryview(header), _bytes_of(target)]
        try:
            self._move(outgoing, incoming)
        except (OSError, ValueError) as error:  # ValueError: the descriptor was closed
            raise RingClosedError(f"the ring was closed: {error}") from None
        self.sends += 1
        generation, step, iteration, bits, not_finite, size = _HEADER.unpack(header)
        if (generation, step, iteration, size) != (*own[:3], target.nbytes):
            raise ElasticError(
                f"the previous worker of the ring is at generation {generation}, step {step}, "
                f"iteration {iteration} with {size} bytes; this worker is at {own[:3]} with "
                f"{target.nbytes} bytes"
            )
        return Flags(bool(bits & 1), bool(bits & 2), not_finite)

    def _move(self, outgoing: list[memoryview], incoming: list[memoryview]) -> None:
        outgoing, incoming = _rest(outgoing, 0), _rest(incoming, 0)
        while outgoing or incoming:
            is_blocked = True
            if outgoing:
                with suppress(BlockingIOError):
                    outgoing = _rest(outgoing, self._out.sendmsg(outgoing))
                    is_blocked = False
            if incoming:
                with suppress(BlockingIOError):
                    received = self._in.recvmsg_into(incoming)[0]
                    if not received:
                        raise ConnectionResetError("a neighbour closed its connection")
                    incoming = _rest(incoming, received)
                    is_blocked = False
            if is_blocked:
                self._wait(bool(outgoing), bool(incoming))

    def _wait(self, can_send: bool, can_receive: bool) -> None:
        poller = select.poll()
        # The next worker may close its end as soon as it has all chunks of a generation's last sum,
        # so its end is watched only while there is something to send.
        if can_send:
            poller.register(self._out, select.POLLOUT)
        if can_receive:
            poller.register(self._in, select.POLLIN)
        while not self._is_closed:
            if poller.poll(_POLL_MS):
                return
        raise ConnectionAbortedError("this worker closed the ring")


def _chunk_bounds(length: int, chunks: int) -> list[tuple[int, int]]:
    return [(length * i // chunks, length * (i + 1) // chunks) for i in range(chunks)]


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def _bytes_of(chunk: NDArray[np.floating]) -> memoryview:
    return memoryview(cast("Buffer", chunk.view(np.uint8))) if len(chunk) else memoryview(b"")


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of views after a number of bytes."""
    left = []
    for view in views:
        if done < len(view):
            left.append(view[done:] if done else view)
        done = max(0, done - len(view))
    return left
