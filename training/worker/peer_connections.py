"""Connections between workers: for the ring, and for the training state."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from presage.errors import ElasticError
from presage.training.generation import Member
from presage.training.wire import ConnectionLostError, error_message, has_token, receive_hello, send

RING, STATE = "ring", "state"
TIMEOUT_S = 10.0
TAKE_S = 30.0  # time for the connection of a worker that enters the same generation
MOST_UNKNOWN = 128  # connections without a token at the same time
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
_Key = tuple[str, int, str]  # kind, generation, sender


class Listener:
    """Listening socket of a worker; connections wait here until the worker takes them.

    At most 128 connections have not sent the token. Further ones are closed.

    Parameters
    ----------
    changed : threading.Condition
        Notified when a connection arrives.
    """

    def __init__(self, host: str, token: str, changed: threading.Condition) -> None:
        self.host, self._changed = host, changed
        self._tokens = (token, token)  # of the leader and of its predecessor
        self._unknown = threading.Semaphore(MOST_UNKNOWN)
        self._waiting: dict[_Key, socket.socket] = {}
        self._oldest = 0
        self._socket = socket.create_server((host, 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="elastic-listener", daemon=True).start()

    def take(
        self, kind: str, generation: int, sender: str, is_cancelled: Callable[[], bool]
    ) -> socket.socket:
        """Wait for the connection of another worker.

        Raises
        ------
        ConnectionLostError
            ``is_cancelled`` became true, or the other worker does not connect within 30 s.
        """
        key = (kind, generation, sender)
        with self._changed:
            self._changed.wait_for(lambda: key in self._waiting or is_cancelled(), TAKE_S)
            if key in self._waiting:
                return self._waiting.pop(key)
            if is_cancelled():
                raise ConnectionLostError(f"generation {generation} ended")
        raise ConnectionLostError(f"worker {sender} does not connect", sender)

    def accept_token(self, token: str) -> None:
        """Accept the token of a new leader; members that it has not reached have the former one."""
        if token != self._tokens[0]:
            self._tokens = (token, self._tokens[0])

    def reject_before(self, generation: int) -> None:
        """Close and reject connections for generations before this one."""
        with self._changed:
            self._oldest = generation
            stale = [key for key in self._waiting if key[1] < generation]
            for key in stale:
                self._waiting.pop(key).close()

    def close(self) -> None:
        """Close the socket and the connections that wait."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._changed:
            for connection in self._waiting.values():
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._unknown.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            _notice_partition(connection)
            self._enter(connection)
        except ConnectionLostError:
            connection.close()
        except (ElasticError, KeyError, TypeError, ValueError) as error:
            with suppress(ConnectionLostError):
                send(connection, error_message(str(error)))
            connection.close()
        finally:
            self._unknown.release()

    def _enter(self, connection: socket.socket) -> None:
        hello = receive_hello(connection, TIMEOUT_S)
        connection.settimeout(TIMEOUT_S)
        if not any(has_token(hello, token) for token in self._tokens):
            raise ElasticError("wrong token")
        key = (str(hello["kind"]), int(hello["generation"]), str(hello["sender"]))
        with self._changed:
            if key[1] < self._oldest:
                raise ElasticError(
                    f"generation {key[1]} is over; the current one is {self._oldest}"
                )
            if former := self._waiting.pop(key, None):
                former.close()
            self._waiting[key] = connection
            self._changed.notify_all()


def connect_to_member(
    member: Member, token: str, kind: str, generation: int, sender: str
) -> socket.socket:
    """Connect to another worker; raises ConnectionLostError if it cannot be reached."""
    try:
        connection = socket.create_connection((member.host, member.port), timeout=TIMEOUT_S)
    except OSError as error:
        raise ConnectionLostError(f"worker {member.worker_id}: {error}", member.worker_id) from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _notice_partition(connection)
    hello = {"token": token, "kind": kind, "generation": generation, "sender": sender}
    try:
        send(connection, hello)
    except ConnectionLostError:
        connection.close()
        raise
    return connection


def _notice_partition(connection: socket.socket) -> None:
    """Let the kernel close a connection whose other machine does not answer for 10 s.

    The kernel answers also for a process that computes or is stopped.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = KEEP_ALIVE | {"TCP_USER_TIMEOUT": int(TIMEOUT_S * 1000)}
    for name, value in options.items():
        if number := getattr(socket, name, None):  # not all systems have them
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
