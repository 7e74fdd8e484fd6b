"""Client of the switch: sums a buffer over the ranks of a job, or leaves it as it was.

Each AllReduce has a number, which increases and is the same on all ranks. An error means that the
buffer is unchanged, so that the caller runs the same number by another algorithm. After
:class:`SwitchLostError` and :class:`ClientClosedError` the caller needs a new client.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from presage.collectives.switch.errors import ClientClosedError, SwitchLostError, refused
from presage.collectives.switch.exchange import Exchange, Limits
from presage.collectives.switch.frame_stream import FrameStream
from presage.collectives.switch.protocol import (
    HELLO,
    MAX_NUMBER,
    WELCOME,
    Header,
    Kind,
    frame,
    token_digest,
)


class Completed(NamedTuple):
    """Last AllReduce that the switch completed, and its sum."""

    number: int
    sum: NDArray[np.float32]


class SwitchClient:
    """Registration of a rank at a switch.

    Parameters
    ----------
    job : str
        Name of the job: up to 64 letters, digits and ``._:/-``.
    rank, ranks : int
        Place of this rank, and the number of ranks.
    epoch : int
        Epoch of the caller's view.
    token : str
        Token of the job, the same on all ranks and secret to other jobs.
    switch_token : str
        Token of the switch, if it has one.
    timeout_s : float
        Longest time without progress, unless an AllReduce has its own. Then the rank cancels the
        AllReduce, and waits 2 s for the decision of the switch. It should exceed the lease of the
        switch.

    Attributes
    ----------
    completed : Completed or None
        Last sum, kept until the next AllReduce completes. All ranks have completed a number when a
        later one completes, so a rank that lost the switch can get its sum here.

    Raises
    ------
    RefusedError
        The switch refuses the registration.
    SwitchLostError
        The switch cannot be reached.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        job: str,
        rank: int,
        ranks: int,
        epoch: int,
        token: str,
        switch_token: str = "",
        timeout_s: float = 10.0,
    ) -> None:
        self.completed: Completed | None = None
        self._timeout_s = timeout_s
        self._busy = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._sums = self._spare = np.empty(0, np.float32)  # the next sum; the memory of the last
        self._stream = FrameStream(host, port, timeout_s)
        hello = HELLO.pack(rank, ranks, token_digest(switch_token), token_digest(token))
        self._stream.put(frame(Header(Kind.HELLO, epoch=epoch), hello + job.encode()))
        try:
            self._limits = self._greet()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, by this client or after an error."""
        return self._stream.is_closed

    def all_reduce(
        self,
        buffer: NDArray[np.float32],
        *,
        number: int,
        epoch: int,
        timeout_s: float | None = None,
    ) -> None:
        """Replace ``buffer`` by the sum of the buffers of all ranks.

        Parameters
        ----------
        buffer : ndarray of float32
            C-contiguous and writable; the same size on all ranks.
        number : int
            Number of the AllReduce, higher than the last one of this job at the switch.
        epoch : int
            Epoch of the view by which all ranks decided.

        Raises
        ------
        RefusedError
            The switch refuses the number, for all ranks. The client can be used further.
        SwitchLostError
            The switch ended, or there was no progress for the time-out.
        ClientClosedError
            Another thread closed the client.
        ValueError
            The buffer, number or epoch is invalid, or another AllReduce is under way.
        """
        _check(buffer, number, epoch)
        if not self._busy.acquire(blocking=False):
            if self.is_closed:  # ``close`` holds the lock
                raise ClientClosedError("the client was closed")
            raise ValueError("another AllReduce of this client is under way")
        try:
            self._reduce(buffer.reshape(-1), number, epoch, timeout_s or self._timeout_s)
        finally:
            self._busy.release()
            if self.is_closed:  # ``close`` left that to this thread
                self._stream.close()

    def start(
        self,
        buffer: NDArray[np.float32],
        *,
        number: int,
        epoch: int,
        timeout_s: float | None = None,
    ) -> Future[None]:
        """Run :meth:`all_reduce` in a thread of this client; one after another."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "inc-client")
        return self._pool.submit(
            self.all_reduce, buffer, number=number, epoch=epoch, timeout_s=timeout_s
        )

    def close(self) -> None:
        """Close the connection, also while another thread is in :meth:`all_reduce`."""
        self._stream.interrupt()
        if self._busy.acquire(blocking=False):
            self._stream.close()
            self._busy.release()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _greet(self) -> Limits:
        header, payload = self._stream.answer(self._timeout_s)
        if header.kind == Kind.REFUSED:
            raise refused(header.code, payload.decode(errors="replace"))
        if header.kind != Kind.WELCOME or len(payload) != WELCOME.size:
            raise SwitchLostError("the switch does not answer by this protocol")
        chunk_bytes, window, *_ = WELCOME.unpack(payload)
        return Limits(chunk_bytes, window)

    def _reduce(
        self, buffer: NDArray[np.float32], number: int, epoch: int, timeout_s: float
    ) -> None:
        if len(self._sums) < len(buffer):
            self._sums = np.empty(len(buffer), np.float32)
        sums = self._sums[: len(buffer)]
        exchange = Exchange(self._stream, self._limits, buffer, sums, number, epoch)
        try:
            exchange.run(timeout_s)
        except (SwitchLostError, ClientClosedError):
            self._stream.close()
            raise
        np.copyto(buffer, sums)
        self.completed = Completed(number, sums)
        self._sums, self._spare = self._spare, self._sums


def statistics(host: str, port: int, switch_token: str = "", timeout_s: float = 5.0) -> bytes:
    """Return the statistics of a switch: a JSON object.

    Raises
    ------
    RefusedError, SwitchLostError
        The token is wrong, or the switch cannot be reached.
    """
    return _request(host, port, Header(Kind.STATS), switch_token, timeout_s)[1]


def raise_fence(
    host: str, port: int, epoch: int, switch_token: str = "", timeout_s: float = 5.0
) -> int:
    """Let a switch refuse epochs below this one; return its fence, which never falls.

    Raises
    ------
    RefusedError, SwitchLostError
        The token is wrong, or the switch cannot be reached.
    """
    return _request(host, port, Header(Kind.FENCE, epoch=epoch), switch_token, timeout_s)[0].epoch


def _request(
    host: str, port: int, header: Header, switch_token: str, timeout_s: float
) -> tuple[Header, bytes]:
    stream = FrameStream(host, port, timeout_s)
    try:
        stream.put(frame(header, token_digest(switch_token)))
        answer, payload = stream.answer(timeout_s)
    finally:
        stream.close()
    if answer.kind == Kind.REFUSED:
        raise refused(answer.code, payload.decode(errors="replace"))
    return answer, payload


def _check(buffer: NDArray[np.float32], number: int, epoch: int) -> None:
    if buffer.dtype != np.float32 or not buffer.flags.c_contiguous or not buffer.flags.writeable:
        raise ValueError("the switch sums writable, contiguous buffers of float32")
    if not (0 <= number <= MAX_NUMBER and 0 <= epoch <= MAX_NUMBER):
        raise ValueError(f"number {number} or epoch {epoch} is out of range")
