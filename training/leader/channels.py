"""Connections of a leader to its workers, and when each worker was heard last."""

from __future__ import annotations

import time
from typing import Protocol

from presage.training.wire import Message


class Channel(Protocol):
    """Connection to a worker."""

    def send(self, message: Message) -> None:
        """Send a message; ignored if the connection is closed."""

    def close(self) -> None:
        """Close the connection."""


class Channels:
    """Connections to workers, by their ids."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self.last_message_s: dict[str, float] = {}

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._channels

    def add(self, worker_id: str, channel: Channel) -> None:
        """Enter a new connection of a worker, and close its old one."""
        self.close(worker_id)
        self._channels[worker_id] = channel
        self.note_message(worker_id)

    def has(self, worker_id: str, channel: Channel) -> bool:
        """Whether a connection is the current one of a worker."""
        return self._channels.get(worker_id) is channel

    def send(self, worker_id: str, message: Message) -> None:
        """Send a message to a worker, if it is connected."""
        if channel := self._channels.get(worker_id):
            channel.send(message)

    def broadcast(self, message: Message) -> None:
        """Send a message to all connected workers."""
        for channel in self._channels.values():
            channel.send(message)

    def release(self, worker_id: str, message: Message) -> None:
        """Send a worker its last message; the worker closes the connection."""
        if channel := self._channels.pop(worker_id, None):
            channel.send(message)

    def close(self, worker_id: str) -> None:
        """Close the connection of a worker, if there is one."""
        if channel := self._channels.pop(worker_id, None):
            channel.close()

    def note_message(self, worker_id: str) -> None:
        """Note that a worker is alive."""
        self.last_message_s[worker_id] = time.monotonic()

    def silent_s(self, worker_id: str, late_s: float) -> float:
        """Return the seconds since a worker was heard, without those of which it is excused.

        Parameters
        ----------
        late_s : float
            Seconds since the last call in which the leader did not read messages.
        """
        now_s = time.monotonic()
        self.last_message_s[worker_id] = self.last_message_s.get(worker_id, now_s) + late_s
        return now_s - self.last_message_s[worker_id]
