"""Messages between the processes of an elastic job: JSON with a length prefix, over TCP.

Every connection begins with one message that has the job's token. A receiver that rejects it
answers ``{"op": "error", "message": ...}`` and closes the connection.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import struct
import time
from typing import Any

from presage.errors import ElasticError

Message = dict[str, Any]
MAX_BYTES = 1 << 20
# First messages, before the token is known. The longest one is that of a worker of a generation of
# 64 members, of about 32 KiB.
MAX_HELLO_BYTES = 1 << 16
_LENGTH = struct.Struct(">I")
_CONNECT_S = 10.0


class ConnectionLostError(ElasticError):
    """The other process closed the connection or ended.

    Attributes
    ----------
    peer : str
        Id of the worker to which this one could not connect; "" if none.
    """

    def __init__(self, message: str, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


def encode(message: Message) -> bytes:
    """Return a message as the bytes to send."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise ElasticError(f"message of {len(body)} bytes; the limit is {MAX_BYTES}")
    return _LENGTH.pack(len(body)) + body


def connect(host: str, port: int) -> socket.socket:
    """Connect to a leader; raises ElasticError if it cannot be reached."""
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise ElasticError(f"leader at {host}:{port} cannot be reached: {error}") from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_CONNECT_S * 1000))
    return connection


def send(connection: socket.socket, message: Message) -> None:
    """Send a message.

    Raises
    ------
    ConnectionLostError
        The connection is closed.
    """
    try:
        connection.sendall(encode(message))
    except OSError as error:
        raise ConnectionLostError(f"connection lost: {error}") from None


def receive(connection: socket.socket) -> Message:
    """Wait for a message.

    Raises
    ------
    ConnectionLostError
        The connection was closed, or its time-out passed.
    ElasticError
        The message is too long or is not a JSON object.
    """
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    return _decode(bytes(receive_exactly(connection, _checked(length))))


def receive_hello(connection: socket.socket, timeout_s: float) -> Message:
    """Wait at most a time for the first message of a connection; raises as :func:`receive`."""
    end_s = time.monotonic() + timeout_s
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size, end_s))
    return _decode(bytes(receive_exactly(connection, _checked(length, MAX_HELLO_BYTES), end_s)))


def receive_exactly(connection: socket.socket, count: int, end_s: float | None = None) -> bytearray:
    """Receive a number of bytes; raise ConnectionLostError if the connection closes before.

    Parameters
    ----------
    end_s : float, optional
        Time of the monotonic clock until which they must be received.
    """
    content = bytearray(count)
    view, done = memoryview(content), 0
    while done < count:
        try:
            if end_s is not None:
                connection.settimeout(max(0.001, end_s - time.monotonic()))
            received = connection.recv_into(view[done:])
        except OSError as error:
            raise ConnectionLostError(f"connection lost: {error}") from None
        if not received:
            raise ConnectionLostError("the other process closed the connection")
        done += received
    return content


async def read(reader: asyncio.StreamReader, most_bytes: int = MAX_BYTES) -> Message:
    """Wait for a message of at most ``most_bytes``; raises as :func:`receive`."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return _decode(await reader.readexactly(_checked(length, most_bytes)))
    except (asyncio.IncompleteReadError, OSError):
        raise ConnectionLostError("the other process closed the connection") from None


def has_token(message: Message, token: str) -> bool:
    """Whether a first message has the job's token."""
    return hmac.compare_digest(str(message.get("token", "")).encode(), token.encode())


def error_message(text: str) -> Message:
    """Return the answer to a message that is rejected."""
    return {"op": "error", "message": text}


def _checked(length: int, most_bytes: int = MAX_BYTES) -> int:
    if length > most_bytes:
        raise ElasticError(f"message of {length} bytes; the limit is {most_bytes}")
    return length


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ElasticError(f"message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ElasticError("message is not a JSON object")
    return message
