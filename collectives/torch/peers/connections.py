"""Connections between all ranks of a job, for votes. Nothing travels on them in normal operation.

Each rank listens at a port that it publishes in the job's store, and connects to all lower ranks.
A thread receives. TCP delivers what is sent while both ranks live; a closed connection means that
the peer has ended.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from torch._C._distributed_c10d import Store

from presage.collectives.torch.errors import CollectiveError
from presage.collectives.torch.peers.address import own_address
from presage.collectives.torch.peers.messages import (
    LENGTHS,
    MAX_TEXT,
    PeerMessage,
    decode,
    encode,
)

_HELLO = struct.Struct("<I32s")
_MAX_DATA = 1 << 34
SEND_S = 60.0  # without progress
READ_BYTES = 1 << 20


@dataclass(slots=True)
class _Peer:
    """Connection to one rank."""

    rank: int
    socket: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)
    received: bytearray = field(default_factory=bytearray)
    is_lost: bool = False


class Peers:
    """Connections of one rank to all others.

    Parameters
    ----------
    store : Store
        Store of the job, through which ranks find each other.
    token : str
        Secret that all ranks of the job have, of 32 characters.
    on_message : callable
        Called with the rank and the message, in the thread that receives.
    on_loss : callable
        Called with the rank whose connection has ended.

    Raises
    ------
    CollectiveError
        A peer cannot be reached within ``timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        *,
        token: str,
        timeout_s: float,
        on_message: Callable[[int, PeerMessage], None],
        on_loss: Callable[[int], None],
    ) -> None:
        self._rank, self._token = rank, token.encode()
        self._on_message, self._on_loss = on_message, on_loss
        self._is_closed = False
        end_s = time.monotonic() + timeout_s
        with _listen(ranks) as listener:
            host, port = listener.getsockname()[:2]
            store.set(f"peer/{rank}", f"{host}:{port}")
            found = [self._connect(store, peer, end_s) for peer in range(rank)]
            found += self._accept(listener, ranks - 1 - rank, end_s)
        self._peers = {peer.rank: peer for peer in found}
        self._thread = threading.Thread(target=self._receive, name="inc-peers", daemon=True)
        self._thread.start()

    def send(self, rank: int, message: PeerMessage) -> None:
        """Send a message; do nothing if the peer has ended."""
        peer = self._peers[rank]
        content = encode(message)
        try:
            with peer.lock:
                _send_all(peer.socket, content)
        except OSError:
            self._lose(peer)

    def broadcast(self, message: PeerMessage) -> None:
        """Send a message to all peers."""
        for rank in self._peers:
            self.send(rank, message)

    @property
    def lost(self) -> list[int]:
        """Ranks that have ended."""
        return sorted(rank for rank, peer in self._peers.items() if peer.is_lost)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for peer in self._peers.values():
            with suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _connect(self, store: Store, rank: int, end_s: float) -> _Peer:
        host, _, port = store.get(f"peer/{rank}").decode().rpartition(":")
        try:
            connection = socket.create_connection(
                (host, int(port)), max(0.1, end_s - time.monotonic())
            )
        except OSError as error:
            raise CollectiveError(f"rank {rank} at {host}:{port}: {error}") from None
        connection.sendall(_HELLO.pack(self._rank, self._token))
        return _Peer(rank, _configured(connection))

    def _accept(self, listener: socket.socket, count: int, end_s: float) -> list[_Peer]:
        """Accept all higher ranks; connections without the token are closed."""
        found: dict[int, _Peer] = {}
        while len(found) < count:
            try:
                listener.settimeout(max(0.01, end_s - time.monotonic()))
                connection, _ = listener.accept()
            except OSError as error:
                have = sorted(found)
                raise CollectiveError(f"only ranks {have} have connected: {error}") from None
            connection.settimeout(5)
            hello = _exactly(connection, _HELLO.size)
            rank, token = _HELLO.unpack(hello) if hello else (0, b"")
            if rank <= self._rank or not hmac.compare_digest(token, self._token):
                connection.close()
                continue
            found[rank] = _Peer(rank, _configured(connection))
        return list(found.values())

    def _receive(self) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                selector.register(peer.socket, selectors.EVENT_READ, peer)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
        for peer in self._peers.values():
            peer.socket.close()

    def _read(self, peer: _Peer) -> bool:
        """Receive what is there; return whether the connection goes on."""
        try:
            part = peer.socket.recv(READ_BYTES)
            peer.received += part
            while (message := _next(peer.received)) is not None:
                self._on_message(peer.rank, message)
        except (OSError, ValueError):
            part = b""
        if not part:
            self._lose(peer)
        return bool(part)

    def _lose(self, peer: _Peer) -> None:
        if not peer.is_lost and not self._is_closed:
            peer.is_lost = True
            self._on_loss(peer.rank)


def _listen(backlog: int) -> socket.socket:
    address = own_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=backlog)


def _configured(connection: socket.socket) -> socket.socket:
    connection.settimeout(SEND_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def _send_all(connection: socket.socket, content: bytes) -> None:
    """Send all bytes; the time-out of the socket is for each part that the system takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[connection.send(rest) :]


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return this number of bytes, or none if the connection ends before."""
    content = b""
    with suppress(OSError):
        while len(content) < count and (part := connection.recv(count - len(content))):
            content += part
    return content if len(content) == count else b""


def _next(received: bytearray) -> PeerMessage | None:
    """Take a message from the front of what was received, if one is complete."""
    if len(received) < LENGTHS.size:
        return None
    text, data = LENGTHS.unpack_from(received)
    if text > MAX_TEXT or data > _MAX_DATA:
        raise ValueError("no message of a peer")
    end = LENGTHS.size + text
    if len(received) < end + data:
        return None
    message = decode(bytes(received[LENGTHS.size : end]), bytes(received[end : end + data]))
    del received[: end + data]
    return message
