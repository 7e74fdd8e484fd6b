"""Connection of a controller to a controlled switch: which jobs it admits."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from presage.collectives.core.messages import Admission, Admitted, Hello
from presage.collectives.switch.errors import (
    ClientClosedError,
    OldAdmissionError,
    SwitchError,
    SwitchLostError,
    refused,
)
from presage.collectives.switch.frame_stream import FrameStream
from presage.collectives.switch.protocol import (
    MAX_NUMBER,
    Header,
    Kind,
    frame,
    pack_floors,
    token_digest,
)


class SwitchControl:
    """Connection of the controller, which is opened by the first request and again after a loss.

    Requests block and run one after another. After :class:`SwitchLostError` the switch may have
    restarted, so the next request is :meth:`hello`.

    Parameters
    ----------
    host, port : str, int
        Address of the switch, which was started with the option ``controlled``.
    token : str
        Token of the switch.
    timeout_s : float
        Longest time to connect, and to wait for an answer.
    """

    def __init__(self, host: str, port: int, token: str = "", *, timeout_s: float = 2.0) -> None:
        self._host, self._port, self._digest = host, port, token_digest(token)
        self._timeout_s = timeout_s
        self._busy = threading.Lock()
        self._stream: FrameStream | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def hello(self, known: int = 0) -> Hello:
        """Return the incarnation of the switch, which is higher at each of its starts.

        Parameters
        ----------
        known : int
            Highest incarnation that the controller has seen. A switch below it, whose clock went
            back before its start, forgets its admission and takes a higher one.

        Raises
        ------
        RefusedError
            The token is wrong, or the switch is not controlled (NotControlledError).
        SwitchLostError
            The switch cannot be reached or does not answer in time.
        """
        _check(known)
        return Hello(self._request(self._greeting(known), Kind.STARTED).epoch)

    def admit(self, admission: Admission) -> Admitted:
        """Put an admission in force; the switch has ended all AllReduces that it excludes.

        Raises
        ------
        OldAdmissionError
            A newer admission is in force, or the switch has restarted: call :meth:`hello`.
        RefusedError
            The token of the switch is wrong, it is not controlled, or it has fewer places for jobs.
        SwitchLostError
            The switch cannot be reached or does not answer in time. It may have the admission.
        ValueError
            A number or the name of a job is invalid.
        """
        _check(admission.incarnation, admission.token, *(epoch for _, epoch in admission.floors))
        header = Header(Kind.ADMISSION, number=admission.token, epoch=admission.incarnation)
        answer = self._request(frame(header, pack_floors(admission.floors)), Kind.ADMITTED)
        return Admitted(answer.epoch, answer.number)

    def close(self) -> None:
        """Close the connection, also while another thread is in a request."""
        self._is_closed = True
        if stream := self._stream:
            stream.interrupt()
        if self._busy.acquire(blocking=False):
            self._drop()
            self._busy.release()

    def _greeting(self, known: int) -> bytes:
        return frame(Header(Kind.GREET, epoch=known), self._digest)

    def _request(self, content: bytes, answer: Kind) -> Header:
        with self._busy:
            try:
                return self._exchange(self._connected(), content, answer)
            except OldAdmissionError:
                raise
            except SwitchError:  # the switch ends the connection after any other refusal
                self._drop()
                raise
            finally:
                if self._is_closed:  # ``close`` left that to this thread
                    self._drop()

    def _connected(self) -> FrameStream:
        if self._is_closed:
            raise ClientClosedError("the connection was closed")
        if self._stream is None:
            self._stream = FrameStream(self._host, self._port, self._timeout_s)
            self._exchange(self._stream, self._greeting(0), Kind.STARTED)
        return self._stream

    def _exchange(self, stream: FrameStream, content: bytes, kind: Kind) -> Header:
        stream.put(content)
        answer, payload = stream.answer(self._timeout_s)
        if answer.kind == Kind.REFUSED:
            raise refused(answer.code, payload.decode(errors="replace"))
        if answer.kind != kind:
            raise SwitchLostError("the switch does not answer by this protocol")
        return answer

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def _check(*numbers: int) -> None:
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise ValueError(f"an incarnation, token or epoch of {numbers} is out of range")
