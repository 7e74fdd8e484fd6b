"""HTTP/2 frames by hand, for clients that begin calls and do not end them."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_HEADERS, ACK = 4, 1
FRAME_BYTES = 16_384
_INITIAL_WINDOW, _MAX_STREAMS = 4, 3  # settings
PREDICT = "/presage.v1.PredictionService/Predict"


def _literal(name: str, value: str) -> bytes:
    """Encode a header: literal, not indexed, no Huffman code (RFC 7541, 6.2.2)."""
    words = [text.encode() for text in (name, value)]
    return b"\0" + b"".join(_length(len(word)) + word for word in words)


def _length(count: int) -> bytes:
    if count < 127:
        return bytes([count])
    rest, out = count - 127, [127]
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    return bytes([*out, rest])


class Connection:
    """Connection whose calls are opened and left unfinished.

    Attributes
    ----------
    ended : set of int
        Streams that the server has ended.
    closed : threading.Event
        Set once the server has closed the connection.
    most_streams : int
        That the server allows at once.
    """

    def __init__(self, port: int, ca: Path | None = None, host: str = "127.0.0.1") -> None:
        raw = socket.create_connection((host, port), timeout=10)
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            context.check_hostname = False
            context.set_alpn_protocols(["h2"])
            raw = context.wrap_socket(raw)
        raw.settimeout(None)
        self._socket = raw
        self.ended: set[int] = set()
        self.closed = threading.Event()
        self.most_streams = 2**31
        self._window, self._initial = 65_535, 65_535
        self._windows: dict[int, int] = defaultdict(lambda: self._initial)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._next = 1
        self._send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._frame(SETTINGS, 0, 0, b"")
        self._settled = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._settled.wait(10)

    def call(self, path: str = PREDICT, token: str = "") -> int:
        """Begin a call: send its headers only."""
        headers = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost",
            "te": "trailers", "content-type": "application/grpc",
        } | ({"authorization": f"Bearer {token}"} if token else {})  # fmt: skip
        block = b"".join(_literal(name, value) for name, value in headers.items())
        stream, self._next = self._next, self._next + 2
        self._frame(HEADERS, END_HEADERS, stream, block)
        return stream

    def message(self, stream: int, size: int, send: int, within_s: float = 10.0) -> int:
        """Begin a message of a size, send part of it, and return the number of bytes sent."""
        content = b"\0" + struct.pack(">I", size) + bytes(send)
        sent = 0
        while sent < len(content):
            with self._changed:
                free = self._changed.wait_for(lambda: self._free(stream), within_s)
                if not free or free < 0:
                    break
                part = content[sent : sent + min(free, FRAME_BYTES)]
                self._window -= len(part)
                self._windows[stream] -= len(part)
            self._frame(DATA, 0, stream, part)
            sent += len(part)
        return sent

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _free(self, stream: int) -> int:
        if self.closed.is_set() or stream in self.ended:
            return -1
        return max(0, min(self._window, self._windows[stream]))

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
        self._send_raw(head + struct.pack(">I", stream) + payload)

    def _send_raw(self, content: bytes) -> None:
        with self._sending, suppress(OSError):
            self._socket.sendall(content)

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while head := self._exactly(9):
                size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
                stream = int.from_bytes(head[5:9]) & 0x7FFFFFFF
                payload = self._exactly(size) if size else b""
                with self._changed:
                    self._take(kind, flags, stream, payload)
                    self._changed.notify_all()
        self.closed.set()
        self._settled.set()
        with self._changed:
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for number, value in struct.iter_unpack(">HI", payload):
                if number == _INITIAL_WINDOW:
                    for known in self._windows:
                        self._windows[known] += value - self._initial
                    self._initial = value
                elif number == _MAX_STREAMS:
                    self.most_streams = value
            self._frame(SETTINGS, ACK, 0, b"")
            self._settled.set()
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload) & 0x7FFFFFFF
            if stream:
                self._windows[stream] += more
            else:
                self._window += more
        elif kind == PING and not flags & ACK:
            self._frame(PING, ACK, 0, payload)
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.ended.add(stream)

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self._socket.recv(size - len(content))
            if not part:
                return b""
            content += part
        return content
