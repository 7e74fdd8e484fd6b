"""Driver of the state machine of one rank: real messages, sums and time-outs.

Most AllReduces run by ring and exchange no epochs: :meth:`RankDriver.can_skip` and
:meth:`RankDriver.skip` count them, and the state machine gets them together, later.

Each other AllReduce begins with :meth:`RankDriver.begin`. If that returns True it goes through
:meth:`RankDriver.reduce_on_switch`, and if that returns False, or ``begin`` did, it runs by ring
and ends with :meth:`RankDriver.end_ring`. Votes of peers arrive in another thread. A vote on an
AllReduce that this rank is running on the switch is held back until its own outcome is known: to
the state machine it is a message that takes long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from presage.collectives.core import messages as m
from presage.collectives.core import rank as machine
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.rank import Agreement, Phase, RankState
from presage.collectives.core.view import RING_ONLY, JobView, Reason
from presage.collectives.switch.client import Completed
from presage.collectives.switch.errors import NoSlotError, RefusedError, SwitchError
from presage.collectives.torch.epoch_exchange import EpochExchange
from presage.collectives.torch.errors import CollectiveError, PeerLostError
from presage.collectives.torch.interfaces import ArbiterConnection, PeerConnections
from presage.collectives.torch.peers.messages import Ballot, Goodbye, PeerMessage, Progress
from presage.collectives.torch.peers.records import PeerRecords
from presage.collectives.torch.switch_link import SwitchLink

_FROM_CONTROLLER = (m.ViewUpdate, m.Prepare, m.Update, m.Abort)
_GRACE_S = 1.0  # for the switch, after a peer's vote
_SILENCE_S = 0.5  # of the controller while it has locked this rank
_WAIT_S = 0.2
_NEVER = 1 << 62


class RankDriver:
    """State of one rank, and what its current AllReduce needs.

    Parameters
    ----------
    exchange : EpochExchange
        Agreement on the smallest epoch.
    connection : ArbiterConnection or None
        Connection to the arbiter; None if everything runs by ring.
    on_view : callable, optional
        Called with each view that comes into use.
    timeout_s : float
        Longest wait for votes of living peers.

    Attributes
    ----------
    summed, failed : int
        AllReduces whose sum came from the switch, and that failed there and ran by ring.
    reason : Reason
        Reason of the last decision that was not only counted.
    equal_sizes : dict of int to int
        Masks of the sizes that were equal on all ranks.
    """

    def __init__(
        self,
        member: m.Member,
        agreement: Agreement,
        *,
        exchange: EpochExchange,
        link: SwitchLink,
        connection: ArbiterConnection | None,
        timeout_s: float,
        on_view: Callable[[JobView], None] | None = None,
    ) -> None:
        self.state = RankState(member, agreement)
        self.peers: PeerConnections | None = None  # set once they are connected
        self._exchange, self._link, self._connection = exchange, link, connection
        self._timeout_s, self._on_view = timeout_s, on_view
        self._changed = threading.Condition(threading.RLock())
        self.summed = self.failed = 0
        self.reason = Reason.OUTSIDE_WINDOW
        self._number, self._skip_until = 0, 0
        self._planned_view, self._next_allowed = RING_ONLY, -1
        self.equal_sizes = exchange.equal_sizes
        self._min_epoch: int | None = None  # for the end of the current AllReduce
        self._next_min_epoch: int | None = None
        self._size = 0  # bytes of the current AllReduce
        self._is_at_switch = False
        self._held_votes: list[m.Vote] = []
        self._held_since_s = 0.0
        self._locked_since_s: float | None = None
        self._records = PeerRecords(member.rank)

    # --- AllReduces that are only counted -----------------------------------------------------

    @property
    def number(self) -> int:
        """Number of the next AllReduce to start."""
        return self._number

    def can_skip(self, mask: int) -> bool:
        """Return whether the next AllReduce runs by ring and changes nothing but the number.

        Parameters
        ----------
        mask : int
            That of its size in ``equal_sizes``.
        """
        number = self._number
        return number < self._skip_until and (number & mask != 0 or not self._exchange.has_epochs)

    def skip(self) -> None:
        """Count an AllReduce that was started by ring."""
        self._number += 1

    def _plan_skips(self) -> None:
        """Set the first number that needs a full step, after the end of an AllReduce.

        The AllReduce after a sum of the switch is a full step: until its ring has ended, a peer
        may need that sum.
        """
        agreement, number = self.state.agreement, self.state.number
        is_in_band = isinstance(agreement, InBandAgreement)
        has_epoch = self._exchange.is_under_way or self._next_min_epoch is not None
        if has_epoch or self.state.last_min_epoch is not None or not is_in_band:
            self._skip_until = 0
            return
        view = agreement.view
        if view is not self._planned_view or self._next_allowed < number:  # a search takes time
            allowed = view.next_allowed(number)
            self._planned_view = view
            self._next_allowed = _NEVER if allowed is None else allowed
        self._skip_until = self._next_allowed

    def _catch_up(self) -> None:
        """Bring the state machine to the current number; the lock is held."""
        if self.state.phase is Phase.IDLE and self._number > self.state.number:
            self.state = machine.skip_rings(self.state, self._number - self.state.number)

    # --- one AllReduce ------------------------------------------------------------------------

    def can_begin_at_once(self, size_bytes: int) -> bool:
        """Return whether ``begin`` would not wait."""
        exchange = self._exchange
        is_free = exchange.is_ready and self.state.agreement.can_start
        return is_free and not exchange.is_new(size_bytes)

    def begin(self, size_bytes: int, order: int = 0) -> bool:
        """Start the next AllReduce; return whether it goes to the switch.

        Parameters
        ----------
        order : int
            Position of this AllReduce among all of the job, to compare with stalled peers.

        Raises
        ------
        CollectiveError
            Sizes differ over the ranks, or a rank has ended.
        """
        found = self._exchange.finish(lambda: self._check_peers(order, size_bytes))
        self._min_epoch = self._next_min_epoch if found is None else found
        self._next_min_epoch = None
        with self._changed:
            self._catch_up()
            self._receive_from_controller()
            if not self.state.agreement.can_start:
                self._wait_for_agreement()
            step = machine.start(self.state)
            self.state, self._size = step.state, size_bytes
            number, newest = step.state.number, step.state.contributed
            self._number, self._skip_until = number + 1, 0
            # Also if all peers have voted already, so that the machine is at the ring.
            self.reason = step.state.agreement.view.reason(number)
            is_on_switch = self.reason.is_allowed
            self._is_at_switch = is_on_switch
            self._records.drop_before(number)
        self._send(step.messages)  # votes, if a peer has given up already
        is_new = self._exchange.is_new(size_bytes)
        self._exchange.begin(number, newest, size_bytes)
        if is_new:  # compared before any data is sent
            self._next_min_epoch = self._exchange.finish(
                lambda: self._check_peers(order, size_bytes)
            )
        return is_on_switch

    def end_ring(self) -> None:
        """End the current AllReduce, whose ring has ended."""
        with self._changed:
            view = self.state.agreement.view
            min_epoch = view.epoch if self._min_epoch is None else self._min_epoch
            self._step(machine.complete_ring(self.state, min_epoch), view)
            self._plan_skips()

    def reduce_on_switch(self, buffer: NDArray[np.float32]) -> bool:
        """Run the current AllReduce on the switch; return False if it is to run by ring.

        The buffer then is as it was before.

        Raises
        ------
        CollectiveError
            Sizes differ over the ranks, or a rank ended whose vote is missing.
        """
        number, view = self.state.number, self.state.agreement.view
        error = self._try_switch(buffer, number, view.epoch)
        with self._changed:
            if error is None:
                min_epoch = view.epoch if self._min_epoch is None else self._min_epoch
                own = machine.receive(self.state, m.Result(*self._place, number, min_epoch))
            elif self.state.phase is not Phase.INC:
                own = machine.Step(self.state)  # began with a vote
            elif isinstance(error, RefusedError):
                is_busy = isinstance(error, NoSlotError)
                reason = m.RefusalReason.BUSY if is_busy else m.RefusalReason.STALE
                own = machine.receive(self.state, m.Refusal(*self._place, number, reason))
            else:
                own = machine.vote(self.state)
            self._is_at_switch = False
            sent = self._step(own, view, send=False)
            held, self._held_votes, self._held_since_s = self._held_votes, [], 0.0
            for vote in held:
                sent += self._step(machine.receive(self.state, vote), view, send=False)
            if self.state.phase is Phase.IDLE:
                self._plan_skips()
        self._send(sent)
        is_summed = error is None or self._wait_for_votes(buffer, number)
        self.summed += is_summed
        self.failed += not is_summed
        return is_summed

    # --- messages -----------------------------------------------------------------------------

    def receive_from_peer(self, rank: int, message: PeerMessage) -> None:
        """Handle a message of another rank, in the thread that receives."""
        with self._changed:
            self._catch_up()
            sent: tuple[m.Message, ...] = ()
            view = self.state.agreement.view
            match message:
                case Ballot(vote) if vote.sender == rank:
                    self._records.add_ballot(rank, message)
                    if vote.number == self.state.number and self._is_at_switch:
                        self._held_votes.append(vote)
                        self._held_since_s = self._held_since_s or time.monotonic()
                    else:
                        sent = self._step(machine.receive(self.state, vote), view, send=False)
                case m.Status() if message.sender == rank:
                    sent = self._step(machine.receive(self.state, message), view, send=False)
                case Progress():
                    self._records.stalled[rank] = message
                case Goodbye(number):
                    self._records.left_at[rank] = number
            self._changed.notify_all()
        self._send(sent)

    def peer_lost(self, rank: int) -> None:
        """Wake the threads that wait for this rank."""
        with self._changed:
            self._changed.notify_all()

    def tick(self) -> None:
        """Do what is due by time; called some times a second by another thread."""
        now_s = time.monotonic()
        with self._changed:
            self._catch_up()
            self._receive_from_controller()
            is_stuck = self._held_votes and now_s > self._held_since_s + _GRACE_S
            agreement = self.state.agreement
            if agreement.can_start:
                self._locked_since_s = None
            elif self._locked_since_s is None:
                self._locked_since_s = now_s
            elif now_s > self._locked_since_s + _SILENCE_S:
                self._locked_since_s = None
                self._step(machine.time_out_agreement(self.state), agreement.view)
            self._changed.notify_all()
        if is_stuck:
            self._link.interrupt()
        if self._connection is not None:
            self._link.maintain(self._connection.switches, agreement.view.epoch)

    def leave(self, timeout_s: float) -> None:
        """Announce to the peers that this rank leaves; wait until none can need its last sum."""
        assert self.peers is not None
        with self._changed:
            self._catch_up()
            number, is_needed = self.state.number, self.state.last_min_epoch is not None
        self.peers.broadcast(Goodbye(number))
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while is_needed and (left_s := end_s - time.monotonic()) > 0:
                lost = self.peers.lost
                if all(
                    self._records.left_at.get(peer, -1) >= number or peer in lost
                    for peer in self.state.member.peers
                ):
                    return
                self._changed.wait(min(left_s, _WAIT_S))

    # --- details ------------------------------------------------------------------------------

    @property
    def _place(self) -> tuple[str, int]:
        return self.state.member.job, self.state.member.rank

    def _step(
        self, step: machine.Step, view: JobView, *, send: bool = True
    ) -> tuple[m.Message, ...]:
        """Take over a step of the machine; the lock is held."""
        self.state = step.state
        if self._on_view is not None and step.state.agreement.view is not view:
            self._on_view(step.state.agreement.view)
        if send and step.messages:
            self._send(step.messages)
        return step.messages

    def _send(self, messages: Sequence[m.Message]) -> None:
        for message in messages:
            match message:
                case m.Vote():
                    self._send_to_peer(message.receiver, self._ballot(message))
                case m.Status():
                    self._send_to_peer(message.receiver, message)
                case m.Adopted() | m.Ack() | m.Done():
                    if self._connection is not None:
                        self._connection.send(message)

    def _send_to_peer(self, rank: int, message: PeerMessage) -> None:
        assert self.peers is not None
        self.peers.send(rank, message)

    def _ballot(self, vote: m.Vote) -> Ballot:
        completed = self._link.completed
        if vote.min_epoch is None:
            return Ballot(vote, self._size)
        assert completed is not None and completed.number == vote.number
        return Ballot(vote, completed.sum.nbytes, completed.sum.tobytes())

    def _receive_from_controller(self) -> None:
        if self._connection is None:
            return
        for message in self._connection.messages():
            is_ours = isinstance(message, _FROM_CONTROLLER) and message[:2] == self._place
            if is_ours:
                self._step(machine.receive(self.state, message), self.state.agreement.view)

    def _wait_for_agreement(self) -> None:
        """Wait until the lock of the two-phase protocol is free; ``tick`` ends it in any case."""
        end_s = time.monotonic() + self._timeout_s
        while not self.state.agreement.can_start:
            self._changed.wait(0.002)
            self._receive_from_controller()
            if lost := self._dead_peers():
                raise PeerLostError(f"rank {min(lost)} ended while the ranks agreed on a view")
            if time.monotonic() > end_s:
                raise CollectiveError(f"no agreement on a view within {self._timeout_s:g} s")

    def _try_switch(
        self, buffer: NDArray[np.float32], number: int, epoch: int
    ) -> SwitchError | None:
        if self.state.phase is not Phase.INC:
            return SwitchError("a peer has given up already")
        try:
            self._link.all_reduce(buffer, number, epoch)
        except SwitchError as error:
            return error
        return None

    def _wait_for_votes(self, buffer: NDArray[np.float32], number: int) -> bool:
        """Wait until the ranks have decided an AllReduce that failed on the switch."""
        end_s = time.monotonic() + self._timeout_s
        with self._changed:
            while self.state.number == number and self.state.phase is Phase.VOTING:
                if lost := self._dead_peers() - set(self._records.ballots(number)):
                    self._records.check_votes(number, self._size)
                    raise PeerLostError(
                        f"rank {min(lost)} closed its connection during AllReduce {number}; "
                        "it has ended, or cannot be reached"
                    )
                if time.monotonic() > end_s:
                    raise CollectiveError(f"no vote of all ranks within {self._timeout_s:g} s")
                self._changed.wait(_WAIT_S)
            self._records.check_votes(number, self._size)
            ballots = self._records.take_ballots(number)
        if self.state.number == number:
            return False
        data = next(ballot.data for ballot in ballots.values() if ballot.vote.min_epoch is not None)
        total = np.frombuffer(data, np.float32)
        np.copyto(buffer, total)
        self._link.completed = Completed(number, total)
        self._plan_skips()
        return True

    def _check_peers(self, order: int, size_bytes: int) -> None:
        """Raise an error if a peer has ended, or waits for this AllReduce with another size."""
        if lost := self._dead_peers():
            raise PeerLostError(f"rank {min(lost)} closed its connection; it has ended")
        self._records.check_stalled(order, size_bytes)

    def _dead_peers(self) -> set[int]:
        """Return the ranks that ended before they had completed the current AllReduce."""
        lost = set(self.peers.lost if self.peers is not None else ())
        return {rank for rank in lost if self._records.left_at.get(rank, -1) <= self.state.number}
