"""GPU expansion: how the workers of a new generation get its training state and form its ring.

The job is paused at a step boundary, and the first worker of the generation has the newest
checkpoint, in memory. It sends it to the workers that need it; then the ring is connected and
training continues at the entry ``breakpoint``. A generation takes no step before all its workers
have the state, because the first sum needs all of them.
"""

from __future__ import annotations

import socket

from presage.errors import ElasticError
from presage.training.generation import Generation
from presage.training.synchronous_accumulation import Ring
from presage.training.wire import ConnectionLostError, receive, receive_exactly, send
from presage.training.worker.peer_connections import RING, STATE, connect_to_member
from presage.training.worker.session import Session
from presage.training.worker.training_state import TrainingState

_TRANSFER_S = 60.0  # longest time without a byte


def enter_generation(generation: Generation, session: Session, state: TrainingState) -> Ring:
    """Exchange the training state and connect the ring of a generation of at least two workers.

    Raises
    ------
    ConnectionLostError
        A worker of the generation ended. The state is the old or the new one, never a part.
    """
    worker_id, number = session.worker_id, generation.number
    rank, size = generation.rank_of(worker_id), generation.size
    following = generation.members[(rank + 1) % size]
    to_next = connect_to_member(following, session.token, RING, number, worker_id)
    try:
        _transfer_state(generation, session, state)
        previous = generation.members[(rank - 1) % size].worker_id
        from_previous = _take(session, RING, number, previous)
    except ConnectionLostError:
        to_next.close()
        raise
    return Ring(rank, size, number, to_next, from_previous)


def _transfer_state(generation: Generation, session: Session, state: TrainingState) -> None:
    number, source = generation.number, generation.source
    if session.worker_id == source.worker_id:
        content = state.capture() if generation.receivers else b""
        for receiver in generation.receivers:
            with (
                _take(session, STATE, number, receiver) as connection,
                session.open_connections.closed_at_end(connection, number),
            ):
                _send_state(connection, content)
    elif session.worker_id in generation.receivers:
        connection = connect_to_member(source, session.token, STATE, number, session.worker_id)
        with connection, session.open_connections.closed_at_end(connection, number):
            received = _receive_state(connection, state.most_bytes)
        state.restore(received)


def _take(session: Session, kind: str, generation: int, sender: str) -> socket.socket:
    return session.listener.take(kind, generation, sender, lambda: session.is_ended(generation))


def _send_state(connection: socket.socket, content: bytes) -> None:
    connection.settimeout(_TRANSFER_S)
    send(connection, {"bytes": len(content)})
    try:
        connection.sendall(content)
    except OSError as error:
        raise ConnectionLostError(f"connection lost: {error}") from None


def _receive_state(connection: socket.socket, most_bytes: int) -> bytearray:
    connection.settimeout(_TRANSFER_S)
    message = receive(connection)
    if "bytes" not in message:
        raise ConnectionLostError(str(message.get("message", "the source sent no state")))
    count = int(message["bytes"])
    if not 0 < count <= most_bytes:
        raise ElasticError(f"the source sends {count} bytes of state; at most {most_bytes} fit")
    return receive_exactly(connection, count)
