"""Frames of a client: sends and receives at the same time, and can be closed by any thread."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from presage.collectives.switch.errors import ClientClosedError, SwitchError, SwitchLostError
from presage.collectives.switch.protocol import HEADER_BYTES, Header, ProtocolError, unpack
from presage.collectives.switch.tcp import configure

_POLL_S = 1.0
_SILENCE_S = 10.0  # after which the kernel closes a connection whose machine does not answer
_MAX_VIEWS = 64  # of one call that sends
_MAX_ANSWER = 1 << 20  # bytes


class FrameStream:
    """Connection to a switch.

    Raises
    ------
    SwitchLostError
        The switch cannot be reached.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise SwitchLostError(f"switch at {host}:{port} cannot be reached: {error}") from None
        configure(self._socket, _SILENCE_S)
        self.is_closed = False
        self._out: deque[tuple[memoryview, bool]] = deque()  # bytes; whether they begin a frame
        self._head = bytearray(HEADER_BYTES)
        self._target = memoryview(self._head)
        self._header: Header | None = None  # of the payload that is being received

    @property
    def has_output(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._out)

    def put(self, head: bytes, payload: memoryview | None = None) -> None:
        """Put a frame behind those that wait; it is sent from the memory of the payload."""
        self._out.append((memoryview(head), True))
        if payload:
            self._out.append((payload, False))

    def forget_unsent(self) -> None:
        """Drop the waiting frames, except a copy of the rest of one that is partly sent."""
        rest = []
        while self._out and not self._out[0][1]:
            rest.append((memoryview(bytes(self._out.popleft()[0])), False))
        self._out = deque(rest)

    def send(self) -> int:
        """Send without waiting; return the number of bytes, which may be 0."""
        done = 0
        try:
            while self._out:
                count = min(len(self._out), _MAX_VIEWS)
                sent = self._socket.sendmsg([self._out[i][0] for i in range(count)])
                done += sent
                self._drop(sent)
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            raise self._lost(error) from None
        return done

    def receive(self, place: Callable[[Header], memoryview]) -> tuple[int, Header | None]:
        """Receive without waiting, until a frame is complete.

        Parameters
        ----------
        place : callable
            Returns the memory for the payload of a header.

        Returns
        -------
        (int, Header or None)
            Number of bytes, and the header of the frame if it is complete.
        """
        done = 0
        try:
            while True:
                while self._target:
                    count = self._socket.recv_into(self._target)
                    if not count:
                        raise ConnectionResetError("the switch closed the connection")
                    done += count
                    self._target = self._target[count:]
                header = self._header
                self._header, self._target = None, memoryview(self._head)
                if header is None:
                    header = unpack(self._head)
                    if header.size:
                        self._header, self._target = header, place(header)
                        continue
                return done, header
        except BlockingIOError:
            return done, None
        except (OSError, ValueError, ProtocolError) as error:
            raise self._lost(error) from None

    def wait(self, timeout_s: float) -> None:
        """Wait until bytes arrive, or until some can be sent if any wait.

        Raises
        ------
        ClientClosedError
            The stream was closed.
        """
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        except (OSError, ValueError) as error:
            raise self._lost(error) from None
        poller.poll(max(0.0, min(timeout_s, _POLL_S)) * 1000)
        if self.is_closed:
            raise ClientClosedError("the client was closed")

    def answer(self, timeout_s: float) -> tuple[Header, bytes]:
        """Send what waits, and return the next frame.

        Raises
        ------
        SwitchLostError
            There is none within the time.
        """
        end_s = time.monotonic() + timeout_s
        payload = bytearray()

        def place(header: Header) -> memoryview:
            if header.size > _MAX_ANSWER:
                raise ProtocolError(f"answer of {header.size} bytes")
            payload.extend(bytes(header.size))
            return memoryview(payload)

        while (left_s := end_s - time.monotonic()) > 0:
            self.send()
            _, header = self.receive(place)
            if header is not None:
                return header, bytes(payload)
            self.wait(left_s)
        raise SwitchLostError(f"the switch did not answer within {timeout_s:g} s")

    def interrupt(self) -> None:
        """End the connection, and wake the thread that uses it; that thread calls ``close``."""
        self.is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Only the thread that uses it may call this."""
        self.interrupt()
        self._socket.close()

    def _drop(self, sent: int) -> None:
        while sent:
            view, _ = self._out.popleft()
            if sent < len(view):
                self._out.appendleft((view[sent:], False))
            sent = max(0, sent - len(view))

    def _lost(self, error: Exception) -> SwitchError:
        if self.is_closed:
            return ClientClosedError("the client was closed")
        return SwitchLostError(f"connection to the switch lost: {error}")
