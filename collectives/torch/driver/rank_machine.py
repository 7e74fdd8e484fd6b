"""State machine of a rank with its lock: steps are taken over and their messages are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from presage.collectives.core import messages as m
from presage.collectives.core import rank as machine
from presage.collectives.core.rank import Agreement, RankState
from presage.collectives.core.view import JobView
from presage.collectives.torch.interfaces import ArbiterConnection, PeerConnections
from presage.collectives.torch.peers.messages import Ballot, PeerMessage
from presage.collectives.torch.switch_link import SwitchLink

_FROM_CONTROLLER = (m.ViewUpdate, m.Prepare, m.Update, m.Abort)
_SILENCE_S = 0.5  # of the controller while it has locked this rank; above its ``lock_s``


class RankMachine:
    """State of a rank and its connections.

    Attributes
    ----------
    state : RankState
        State of the machine.
    changed : threading.Condition
        Lock of the state, notified when a message has arrived.
    peers : PeerConnections or None
        Connections to the other ranks; None until they are connected.
    size_bytes : int
        Size of the current AllReduce.
    """

    def __init__(
        self,
        member: m.Member,
        agreement: Agreement,
        *,
        link: SwitchLink,
        connection: ArbiterConnection | None,
        on_view: Callable[[JobView], None] | None,
    ) -> None:
        self.state = RankState(member, agreement)
        self.changed = threading.Condition(threading.RLock())
        self.peers: PeerConnections | None = None
        self.size_bytes = 0
        self._link, self._connection, self._on_view = link, connection, on_view
        self._locked_since_s: float | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Job and rank."""
        return self.state.member.job, self.state.member.rank

    @property
    def view(self) -> JobView:
        """View in use."""
        return self.state.agreement.view

    def take(self, step: machine.Step) -> tuple[m.Message, ...]:
        """Take over a step and return its messages, which are not sent yet; the lock is held."""
        before, self.state = self.view, step.state
        if self._on_view is not None and self.view is not before:
            self._on_view(self.view)
        return step.messages

    def apply(self, step: machine.Step) -> None:
        """Take over a step and send its messages; the lock is held."""
        if messages := self.take(step):
            self.send(messages)

    def send(self, messages: Sequence[m.Message]) -> None:
        """Send messages of the machine to peers and to the controller."""
        for message in messages:
            match message:
                case m.Vote():
                    self._send_to_peer(message.receiver, self._ballot(message))
                case m.Status():
                    self._send_to_peer(message.receiver, message)
                case m.Adopted() | m.Ack() | m.Done():
                    if self._connection is not None:
                        self._connection.send(message)

    def receive_from_controller(self) -> None:
        """Handle the messages of the controller that have arrived; the lock is held."""
        if self._connection is None:
            return
        for message in self._connection.messages():
            is_ours = isinstance(message, _FROM_CONTROLLER) and message[:2] == self.place
            if is_ours:
                self.apply(machine.receive(self.state, message))

    def time_out_silence(self, now_s: float) -> None:
        """Stop waiting for a controller that has locked this rank and is silent."""
        if self.state.agreement.can_start:
            self._locked_since_s = None
        elif self._locked_since_s is None:
            self._locked_since_s = now_s
        elif now_s > self._locked_since_s + _SILENCE_S:
            self._locked_since_s = None
            self.apply(machine.time_out_agreement(self.state))

    def _send_to_peer(self, rank: int, message: PeerMessage) -> None:
        assert self.peers is not None
        self.peers.send(rank, message)

    def _ballot(self, vote: m.Vote) -> Ballot:
        completed = self._link.completed
        if vote.min_epoch is None:
            return Ballot(vote, self.size_bytes)
        assert completed is not None and completed.number == vote.number
        return Ballot(vote, completed.sum.nbytes, completed.sum.tobytes())
