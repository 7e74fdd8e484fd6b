"""Connection of a worker to the leader that the job's folder names."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from presage.errors import ElasticError
from presage.training.job_folder import JobFolder, LeaderAddress
from presage.training.wire import ConnectionLostError, Message, connect, receive, send

MOVED_S = 3.0  # time for which the folder names another leader before the worker changes to it


class LeaderConnection:
    """Connection to a leader, which may be replaced by one to its successor.

    Attributes
    ----------
    address : LeaderAddress
        Leader that it is connected to, with the token that this worker uses.
    socket : socket.socket
        Connection to that leader.
    """

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.address = LeaderAddress("", 0, "", 0)
        self.socket: socket.socket
        self._lock = threading.Lock()
        self._moved_s: float | None = None  # when the folder began to name another leader

    def connect(self) -> tuple[LeaderAddress, socket.socket]:
        """Connect to the leader in the folder; raises ElasticError if it cannot be reached."""
        address = self.folder.leader()
        return address, connect(address.host, address.port)

    def use(
        self, address: LeaderAddress, connection: socket.socket, hello: Callable[[], Message]
    ) -> Message:
        """Use a new connection: send its first message, and return the answer.

        Raises
        ------
        ConnectionLostError
            The connection is closed, or the leader has another token: it is about to be replaced.
        """
        with self._lock:  # a report of the training loop is in this message or follows it
            self.address, self.socket, self._moved_s = address, connection, None
            send(connection, {**hello(), "token": address.token})
        answer = receive(connection)
        if answer.get("is_token_wrong"):
            raise ConnectionLostError(str(answer.get("message")))
        return answer

    def send(self, message: Message) -> None:
        """Send a message; ignored if the connection is closed."""
        with self._lock, suppress(ConnectionLostError):
            send(self.socket, message)

    def has_moved(self) -> bool:
        """Whether the folder has named another leader for 3 seconds; call it repeatedly."""
        try:
            found = self.folder.leader()
        except ElasticError:
            found = self.address  # no other leader is known
        is_same = (found.host, found.port, found.pid) == (
            self.address.host, self.address.port, self.address.pid
        )  # fmt: skip
        if is_same:
            self._moved_s = None
            return False
        if self._moved_s is None:
            self._moved_s = time.monotonic()
        return time.monotonic() - self._moved_s >= MOVED_S

    def shut(self) -> None:
        """Shut the connection down, which ends a thread that waits for its messages."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
