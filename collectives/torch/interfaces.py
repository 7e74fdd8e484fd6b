"""Interfaces of the connections that the parts of a rank use; tests have others of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from presage.collectives.core import messages as m
from presage.collectives.torch.peers.messages import PeerMessage
from presage.collectives.torch.switch_link import Address


class ArbiterConnection(Protocol):
    """Connection to the arbiter; no method blocks."""

    @property
    def switches(self) -> Sequence[Address]:
        """Switches of the job."""

    def messages(self) -> list[m.ToRank]:
        """Take the messages that have arrived."""

    def send(self, message: m.ToController) -> None:
        """Send a message."""

    def close(self) -> None:
        """End the connection."""


class ReportingConnection(ArbiterConnection, Protocol):
    """Interface of ``collectives.arbiter.rank_connection.RankConnection``."""

    def report(self, phases: Any, *, started: int, now_s: float) -> None: ...  # noqa: D102
    def record(self, ended: Any) -> None: ...  # noqa: D102


class PeerConnections(Protocol):
    """Connections to the other ranks of the job."""

    @property
    def lost(self) -> list[int]:
        """Ranks that have ended."""

    def send(self, rank: int, message: PeerMessage) -> None:
        """Send a message to one rank."""

    def broadcast(self, message: PeerMessage) -> None:
        """Send a message to all other ranks."""
