"""Connection of the pure-Python aggregator: frames in and out, with bounded memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from presage.collectives.switch.protocol import (
    HEADER_BYTES,
    MAX_REASON,
    MAX_REQUEST,
    NO_NUMBER,
    Code,
    Header,
    Kind,
    ProtocolError,
    frame,
    pack,
    unpack,
)
from presage.collectives.switch.pure_python.counters import Counters
from presage.collectives.switch.pure_python.job import Member

_MAX_PENDING = 1 << 20  # bytes; a client that requests statistics and reads none is closed
_DROP_BYTES = 64 << 10
_READS = 8  # of one connection, before the others are served
_Requests = Callable[["Connection", Header, bytes], None]


class Connection:
    """Connection to a rank or to a client that asks for statistics.

    Parameters
    ----------
    request : callable
        Called with the connection, the header and the payload of each frame except CHUNK.
    received : callable
        Called with the member after each complete chunk.
    changed : callable
        Called with the connection when it may have something to send.

    Attributes
    ----------
    member : Member or None
        The rank, once it is registered.
    is_ending : bool
        Whether the last frame is REFUSED. The connection is read until the peer closes it, since
        closing it before could lose the reason.
    admission_bytes : int
        Most bytes of an ADMISSION; 0 until the peer has greeted as the controller of the switch.
    since_s : float
        When the connection was accepted, or began to end.
    """

    def __init__(
        self,
        peer: socket.socket,
        request: _Requests,
        received: Callable[[Member], None],
        changed: Callable[[Connection], None],
        counts: Counters,
    ) -> None:
        self.socket = peer
        self.member: Member | None = None
        self.is_ending = self._is_shut = False
        self.admission_bytes = 0
        self.since_s = time.monotonic()
        self._counts = counts
        self._request, self._received, self._changed = request, received, changed
        self._head = bytearray(HEADER_BYTES)
        self._header: Header | None = None
        self._target = memoryview(self._head)
        self._is_chunk = False
        self._pending = bytearray()
        self._sum = memoryview(b"")  # rest of a SUM frame's payload
        self._sum_head = b""

    # Sending --------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether there is anything to send."""
        is_summed = self.member is not None and self.member.job.next_sum(self.member) is not None
        return bool(self._pending or self._sum_head or self._sum or is_summed)

    def send(self, content: bytes) -> None:
        """Put a frame behind the pending ones."""
        self._pending += content
        self._changed(self)

    def refuse(self, code: Code, reason: str, number: int = NO_NUMBER) -> None:
        """Send REFUSED.

        For a rank that takes part in no AllReduce any more, complete the frames under way without
        the memory of a slot.
        """
        is_active = self.member is not None and self.member.number is not None
        if (self._sum_head or self._sum) and not is_active:
            # The rest of the frame comes first, before what waits for its end.
            self._pending[:0] = self._sum_head + self._sum
            self._sum_head, self._sum = b"", memoryview(b"")
        if self._is_chunk and not is_active:
            self._target, self._is_chunk = memoryview(bytearray(len(self._target))), False
        self._counts.refusals[code] += 1
        payload = reason.encode()[:MAX_REASON]
        self.send(frame(Header(Kind.REFUSED, code, number=number), payload))

    def end(self, code: Code, reason: str) -> None:
        """Send REFUSED for the registration, and nothing after it."""
        if not self.is_ending:
            if self.member:
                self.member.number = None
            self.refuse(code, reason)
            self.is_ending, self.since_s = True, time.monotonic()
            self.detach(reason)

    def wake(self) -> None:
        """Send sums at the end of this turn of the event loop."""
        self._changed(self)

    def detach(self, reason: str) -> None:
        """Remove the rank from its job."""
        member, self.member = self.member, None
        if member:
            member.job.leave(member, f"rank {member.rank}: {reason}")

    def write(self, sum_sent: Callable[[Member], None]) -> None:
        """Send until the socket takes no more; ``sum_sent`` is called after each complete sum."""
        with suppress(BlockingIOError):
            while self._fill():
                if self._sum_head or self._sum:
                    sent = self.socket.sendmsg([self._sum_head, self._sum])
                    head = min(sent, len(self._sum_head))
                    self._sum_head, self._sum = self._sum_head[head:], self._sum[sent - head :]
                    if not (self._sum_head or self._sum) and self.member:
                        sum_sent(self.member)
                else:
                    sent = self.socket.send(self._pending)
                    del self._pending[:sent]
                self._counts.bytes_out += sent
        if self.is_ending and not self._is_shut and not self._fill():
            self._is_shut = True
            self.socket.shutdown(socket.SHUT_WR)

    def _fill(self) -> bool:
        """Choose the next frame: the rest of a sum, what is pending, the next sum."""
        if self._sum_head or self._sum or self._pending:
            return True
        if self.member and (found := self.member.job.next_sum(self.member)):
            self._sum_head, self._sum = pack(found[0]), found[1]
            return True
        return False

    # Receiving ------------------------------------------------------------------------------------

    def read(self) -> None:
        """Receive what there is.

        Raises
        ------
        ProtocolError, OSError
            The peer sent what is not allowed, or closed the connection.
        """
        with suppress(BlockingIOError):
            for _ in range(_READS):
                target = memoryview(bytearray(_DROP_BYTES)) if self.is_ending else self._target
                count = self.socket.recv_into(target)
                if not count:
                    raise ConnectionResetError("connection closed")
                self._counts.bytes_in += count
                if self.is_ending:
                    continue
                self._target = self._target[count:]
                while not self._target and not self.is_ending:
                    self._advance()

    def _advance(self) -> None:
        """Go on after a complete header or payload."""
        if self._header is None:
            header = unpack(self._head)
            self._target = self._payload_target(header)
            self._header = header
            return
        header, self._header = self._header, None
        payload, self._target = self._payload, memoryview(self._head)
        if header.kind != Kind.CHUNK:
            if len(self._pending) > _MAX_PENDING:
                raise ProtocolError("the client does not read what it requests")
            self._request(self, header, bytes(payload))
        elif self._is_chunk and self.member:
            self._is_chunk = False
            self._received(self.member)

    def _payload_target(self, header: Header) -> memoryview:
        self._payload = bytearray()
        if header.kind == Kind.CHUNK:
            if not self.member:
                raise ProtocolError("chunk before a registration")
            target = self.member.job.target(self.member, header)
            self._is_chunk = target is not None
            return memoryview(bytearray(header.size)) if target is None else target
        if header.kind == Kind.ADMISSION and not self.admission_bytes:
            self.end(Code.BAD_TOKEN, "ADMISSION before GREET with the token of the switch")
            return memoryview(b"")
        limit = self.admission_bytes if header.kind == Kind.ADMISSION else MAX_REQUEST
        if header.size > limit:
            raise ProtocolError(f"payload of {header.size} bytes; the limit is {limit}")
        self._payload = bytearray(header.size)
        return memoryview(self._payload)
