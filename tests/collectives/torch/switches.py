"""Switches that fail in a way that a test decides."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np

from presage.collectives.switch.protocol import (
    HEADER_BYTES,
    HELLO,
    WELCOME,
    Header,
    Kind,
    frame,
    unpack,
)

_CHUNK_BYTES = 1 << 20


class HalfSwitch:
    """Switch for two ranks and buffers of one chunk that dies after it has sent one sum.

    Attributes
    ----------
    sent_to : int
        Rank that gets the sum.
    pause_s : float
        Time from the sum to the death.
    """

    host = "127.0.0.1"

    def __init__(self, sent_to=0, pause_s=0.0):
        self.sent_to, self.pause_s = sent_to, pause_s
        self.listener = socket.create_server((self.host, 0))
        self.port = self.listener.getsockname()[1]
        self.chunks, self.ranks, self.done = {}, {}, 0
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        rank = None
        with contextlib.suppress(OSError, EOFError):
            while True:
                header = unpack(self._exactly(connection, HEADER_BYTES))
                payload = self._exactly(connection, header.size)
                if header.kind == Kind.HELLO:
                    rank = HELLO.unpack(payload[: HELLO.size])[0]
                    self.ranks[rank] = connection
                    connection.sendall(
                        frame(Header(Kind.WELCOME), WELCOME.pack(_CHUNK_BYTES, 16, 1, 2, 1))
                    )
                elif header.kind == Kind.CHUNK:
                    self._add(rank, header, np.frombuffer(payload, np.float32))

    def _add(self, rank, header, values):
        with self.lock:
            self.chunks[rank] = values
            if len(self.chunks) < 2:
                return
            total = (self.chunks[0] + self.chunks[1]).tobytes()
            self.chunks = {}
            answer = Header(Kind.SUM, 0, 0, 0, header.number, header.epoch)
            self.ranks[self.sent_to].sendall(frame(answer, total))
            self.done += 1
            self.listener.close()
            time.sleep(self.pause_s)
            for connection in self.ranks.values():
                connection.shutdown(socket.SHUT_WR)

    @staticmethod
    def _exactly(connection, count):
        content = b""
        while len(content) < count:
            part = connection.recv(count - len(content))
            if not part:
                raise EOFError
            content += part
        return content


class Gate:
    """Relay to a switch that can be shut: then bytes are neither sent nor refused.

    With ``holds_requests`` false, only bytes from the switch are held.
    """

    def __init__(self, switch, holds_requests=True):
        self.holds_requests = holds_requests
        self.target = (switch.host, switch.port)
        self.is_open = threading.Event()
        self.is_open.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self.listener.accept()
                self.is_open.wait()
                outer = socket.create_connection(self.target)
                ways = ((inner, outer, self.holds_requests), (outer, inner, True))
                for way in ways:
                    threading.Thread(target=self._relay, args=way, daemon=True).start()

    def _relay(self, source, target, is_held):
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                if is_held:
                    self.is_open.wait()
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
