"""Driver of the state machine of one rank: real messages, sums and time-outs.

Most AllReduces run by ring and exchange no epochs: ``can_skip`` and ``skip`` of the driver count
them, and the state machine gets them together, later.

Each other AllReduce begins with :meth:`RankDriver.begin`. If that returns True it goes through
:meth:`RankDriver.reduce_on_switch`, and if that returns False, or ``begin`` did, it runs by ring
and ends with :meth:`RankDriver.end_ring`. Votes of peers arrive in another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from presage.collectives.core import messages as m
from presage.collectives.core import rank as machine
from presage.collectives.core.rank import Agreement, Phase, RankState
from presage.collectives.core.view import JobView, Reason
from presage.collectives.switch.client import Completed
from presage.collectives.torch.driver.peer_waits import PeerWaits
from presage.collectives.torch.driver.rank_machine import RankMachine
from presage.collectives.torch.driver.ring_counter import RingCounter
from presage.collectives.torch.driver.switch_attempt import SwitchAttempt
from presage.collectives.torch.epoch_exchange import EpochExchange
from presage.collectives.torch.interfaces import ArbiterConnection, PeerConnections
from presage.collectives.torch.peers.messages import Ballot, Goodbye, PeerMessage, Progress
from presage.collectives.torch.peers.records import PeerRecords
from presage.collectives.torch.switch_link import SwitchLink


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
    can_skip, skip : callable
        Methods of ``RingCounter``, bound once since each AllReduce calls them.
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
        self._machine = RankMachine(
            member, agreement, link=link, connection=connection, on_view=on_view
        )
        self._exchange, self._link, self._connection = exchange, link, connection
        self._records = PeerRecords(member.rank)
        self._waits = PeerWaits(self._machine, self._records, timeout_s)
        self._rings = RingCounter(self._machine, exchange)
        self._attempt = SwitchAttempt(self._machine, link)
        self.can_skip, self.skip = self._rings.can_skip, self._rings.skip
        self.equal_sizes = exchange.equal_sizes
        self.summed = self.failed = 0
        self.reason = Reason.OUTSIDE_WINDOW
        self._min_epoch: int | None = None  # for the end of the current AllReduce
        self._next_min_epoch: int | None = None

    @property
    def state(self) -> RankState:
        """State of the machine."""
        return self._machine.state

    @property
    def number(self) -> int:
        """Number of the next AllReduce to start."""
        return self._rings.number

    @property
    def peers(self) -> PeerConnections | None:
        """Connections to the other ranks; None until they are connected."""
        return self._machine.peers

    @peers.setter
    def peers(self, peers: PeerConnections) -> None:
        self._machine.peers = peers

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
        check = partial(self._waits.check_peers, order, size_bytes)
        found = self._exchange.finish(check)
        self._min_epoch = self._next_min_epoch if found is None else found
        self._next_min_epoch = None
        step, is_on_switch = self._start(size_bytes)
        self._machine.send(step.messages)  # votes, if a peer has given up already
        is_new = self._exchange.is_new(size_bytes)
        self._exchange.begin(step.state.number, step.state.contributed, size_bytes)
        if is_new:  # compared before any data is sent
            self._next_min_epoch = self._exchange.finish(check)
        return is_on_switch

    def end_ring(self) -> None:
        """End the current AllReduce, whose ring has ended."""
        with self._machine.changed:
            epoch = self._machine.view.epoch if self._min_epoch is None else self._min_epoch
            self._machine.apply(machine.complete_ring(self.state, epoch))
            self._plan_skips()

    def reduce_on_switch(self, buffer: NDArray[np.float32]) -> bool:
        """Run the current AllReduce on the switch; return False if it is to run by ring.

        The buffer then is as it was before.

        Raises
        ------
        CollectiveError
            Sizes differ over the ranks, or a rank ended whose vote is missing.
        """
        number, view = self.state.number, self._machine.view
        error = self._attempt.sum_on_switch(buffer, number, view.epoch)
        with self._machine.changed:
            min_epoch = view.epoch if self._min_epoch is None else self._min_epoch
            sent = self._attempt.end(number, min_epoch, error)
            if self.state.phase is Phase.IDLE:
                self._plan_skips()
        self._machine.send(sent)
        is_summed = error is None or self._wait_for_votes(buffer, number)
        self.summed += is_summed
        self.failed += not is_summed
        return is_summed

    # --- messages -----------------------------------------------------------------------------

    def receive_from_peer(self, rank: int, message: PeerMessage) -> None:
        """Handle a message of another rank, in the thread that receives."""
        with self._machine.changed:
            self._rings.catch_up()
            sent: tuple[m.Message, ...] = ()
            match message:
                case Ballot(vote) if vote.sender == rank:
                    self._records.add_ballot(rank, message)
                    if vote.number == self.state.number and self._attempt.is_under_way:
                        self._attempt.hold(vote)
                    else:
                        sent = self._machine.take(machine.receive(self.state, vote))
                case m.Status() if message.sender == rank:
                    sent = self._machine.take(machine.receive(self.state, message))
                case Progress():
                    self._records.stalled[rank] = message
                case Goodbye(number):
                    self._records.left_at[rank] = number
            self._machine.changed.notify_all()
        self._machine.send(sent)

    def peer_lost(self, rank: int) -> None:
        """Wake the threads that wait for this rank."""
        with self._machine.changed:
            self._machine.changed.notify_all()

    def tick(self) -> None:
        """Do what is due by time; called some times a second by another thread."""
        now_s = time.monotonic()
        with self._machine.changed:
            self._rings.catch_up()
            self._machine.receive_from_controller()
            is_overdue = self._attempt.is_overdue(now_s)
            epoch = self._machine.view.epoch
            self._machine.time_out_silence(now_s)
            self._machine.changed.notify_all()
        if is_overdue:
            self._link.interrupt()
        if self._connection is not None:
            self._link.maintain(self._connection.switches, epoch)

    def leave(self, timeout_s: float) -> None:
        """Announce to the peers that this rank leaves; wait until none can need its last sum."""
        with self._machine.changed:
            self._rings.catch_up()
        self._waits.leave(timeout_s)

    # --- details ------------------------------------------------------------------------------

    def _start(self, size_bytes: int) -> tuple[machine.Step, bool]:
        """Start the next AllReduce; return its step, and whether it goes to the switch."""
        with self._machine.changed:
            self._rings.catch_up()
            self._machine.receive_from_controller()
            if not self.state.agreement.can_start:
                self._waits.wait_for_agreement()
            step = machine.start(self.state)
            self._machine.state, self._machine.size_bytes = step.state, size_bytes
            number = step.state.number
            self._rings.start(number)
            # Also if all peers have voted already, so that the machine is at the ring.
            self.reason = step.state.agreement.view.reason(number)
            self._attempt.is_under_way = self.reason.is_allowed
            self._records.drop_before(number)
            return step, self.reason.is_allowed

    def _wait_for_votes(self, buffer: NDArray[np.float32], number: int) -> bool:
        """Wait for the votes on an AllReduce; copy the sum of a peer that has it."""
        data = self._waits.wait_for_votes(number)
        if data is None:
            return False
        total = np.frombuffer(data, np.float32)
        np.copyto(buffer, total)
        self._link.completed = Completed(number, total)
        self._plan_skips()
        return True

    def _plan_skips(self) -> None:
        self._rings.plan(has_epoch=self._next_min_epoch is not None)
