"""Connections between all ranks of a test job: ring, votes and results go over them."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections import deque
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until


class Mesh:
    """Messages to each peer, and those that have arrived; ranks meet by files in a folder."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.arrived: deque[Any] = deque()
        self._woken = threading.Condition()
        self._peers: dict[int, socket.socket] = {}
        server = socket.create_server(("127.0.0.1", 0))
        (folder / f"{rank}.tmp").write_text(str(server.getsockname()[1]))
        (folder / f"{rank}.tmp").rename(folder / f"{rank}.port")
        for peer in range(rank):
            self._add(peer, socket.create_connection(("127.0.0.1", _port(folder, peer))))
            self._peers[peer].sendall(bytes([rank]))
        for _ in range(rank + 1, ranks):
            peer_socket, _ = server.accept()
            self._add(peer_socket.recv(1)[0], peer_socket)

    def send(self, peer: int, message: object) -> None:
        content = pickle.dumps(message)
        self._peers[peer].sendall(struct.pack("<I", len(content)) + content)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a message has arrived."""
        with self._woken:
            return self._woken.wait_for(lambda: bool(self.arrived), timeout_s)

    def _add(self, peer: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[peer] = connection
        threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while len(head := stream.read(4)) == 4:
            message = pickle.loads(stream.read(struct.unpack("<I", head)[0]))
            with self._woken:
                self.arrived.append(message)
                self._woken.notify_all()


def _port(folder: Path, peer: int) -> int:
    path = folder / f"{peer}.port"
    wait_until(path.exists)
    return int(path.read_text())
