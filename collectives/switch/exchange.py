"""One AllReduce of one rank through the switch."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from presage.collectives.switch.errors import ClientClosedError, SwitchLostError, refused
from presage.collectives.switch.frame_stream import FrameStream
from presage.collectives.switch.protocol import (
    BEGIN,
    NO_NUMBER,
    Header,
    Kind,
    ProtocolError,
    chunk_count,
    chunk_size,
    frame,
    pack,
)

VERDICT_S = 2.0  # without progress after a cancellation, which a switch answers at once


class Limits(NamedTuple):
    """Bytes of a chunk, and chunks that a rank may be ahead of its sums."""

    chunk_bytes: int
    window: int


class Exchange:
    """Chunks of a buffer to the switch, and their sums from it.

    Parameters
    ----------
    buffer, sums : ndarray of shape (n,)
        Values of this rank, which are only read, and memory for the sums.
    """

    def __init__(
        self,
        stream: FrameStream,
        limits: Limits,
        buffer: NDArray[np.float32],
        sums: NDArray[np.float32],
        number: int,
        epoch: int,
    ) -> None:
        self._stream, self._limits = stream, limits
        self._values, self._number, self._epoch = len(buffer), number, epoch
        self._source, self._sums = _bytes_of(buffer), _bytes_of(sums)
        self._chunks = chunk_count(len(buffer), limits.chunk_bytes)
        self._put = self._received = 0  # chunks
        self._text = bytearray()  # payload of a frame that is no sum
        self._is_cancelled = False

    @property
    def is_sent(self) -> bool:
        """Whether the system has taken all chunks, so that the AllReduce may complete."""
        return self._put == self._chunks and not self._stream.has_output

    def run(self, timeout_s: float) -> None:
        """Send all chunks and receive all sums.

        Raises
        ------
        SwitchError
            As :meth:`SwitchClient.all_reduce`; ``sums`` is undefined then.
        """
        begin = Header(Kind.BEGIN, number=self._number, epoch=self._epoch)
        self._stream.put(frame(begin, BEGIN.pack(self._values)))
        try:
            self._run(timeout_s)
        except (SwitchLostError, ClientClosedError) as error:
            error.may_be_complete = self.is_sent
            raise

    def _run(self, timeout_s: float) -> None:
        progress_s, patience_s = time.monotonic(), timeout_s
        while self._received < self._chunks:
            self._put_chunks()
            moved = self._stream.send()
            received, header = self._stream.receive(self._place)
            if header is not None:
                self._take(header)
            now_s = time.monotonic()
            if moved or received:
                progress_s = now_s
            elif (left_s := progress_s + patience_s - now_s) > 0:
                self._stream.wait(left_s)
            else:
                self._cancel(timeout_s)
                patience_s, progress_s = VERDICT_S, now_s

    def _put_chunks(self) -> None:
        limit = min(self._chunks, self._received + self._limits.window)
        if self._is_cancelled:
            return
        for index in range(self._put, limit):
            view = self._chunk_of(self._source, index)
            header = Header(Kind.CHUNK, 0, len(view), index, self._number, self._epoch)
            self._stream.put(pack(header), view)
            self._put += 1

    def _place(self, header: Header) -> memoryview:
        """Return the memory for a payload."""
        if header.kind == Kind.SUM and header.number == self._number:
            view = self._chunk_of(self._sums, header.chunk)
            if header.chunk != self._received or header.size != len(view):
                raise ProtocolError("sum of another chunk or size")
            return view
        if header.size > self._limits.chunk_bytes + 4096:
            raise ProtocolError(f"payload of {header.size} bytes")
        self._text = bytearray(header.size)
        return memoryview(self._text)

    def _take(self, header: Header) -> None:
        if header.kind == Kind.SUM and header.number == self._number:
            self._received += 1
        elif header.kind == Kind.REFUSED and header.number == self._number:
            self._stream.forget_unsent()
            raise refused(header.code, self._text.decode(errors="replace"))
        elif header.kind == Kind.REFUSED and header.number == NO_NUMBER:
            reason = self._text.decode(errors="replace")
            raise SwitchLostError(f"the switch ended the registration: {reason}")

    def _cancel(self, timeout_s: float) -> None:
        """Let the switch decide after a time-out: it refuses the number, or sends its sums."""
        if self._is_cancelled or self._stream.has_output:
            raise SwitchLostError(f"no progress at the switch for {timeout_s:g} s")
        self._is_cancelled = True
        self._stream.put(frame(Header(Kind.CANCEL, number=self._number, epoch=self._epoch)))

    def _chunk_of(self, memory: memoryview, index: int) -> memoryview:
        start = index * self._limits.chunk_bytes
        return memory[start : start + chunk_size(self._values, index, self._limits.chunk_bytes)]


def _bytes_of(values: NDArray[np.float32]) -> memoryview:
    return memoryview(values.view(np.uint8).data) if len(values) else memoryview(bytearray())
