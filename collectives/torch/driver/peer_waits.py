"""Waits of a rank for its peers, each of which ends when a peer is lost or its time is over."""

from __future__ import annotations

import time

from presage.collectives.core.rank import Phase
from presage.collectives.torch.driver.rank_machine import RankMachine
from presage.collectives.torch.errors import CollectiveError, PeerLostError
from presage.collectives.torch.peers.messages import Goodbye
from presage.collectives.torch.peers.records import PeerRecords

_WAIT_S = 0.2


class PeerWaits:
    """Waits for votes, for agreement, and for peers that may need the last sum.

    Parameters
    ----------
    records : PeerRecords
        What the peers have sent.
    timeout_s : float
        Longest wait for living peers.
    """

    def __init__(self, machine: RankMachine, records: PeerRecords, timeout_s: float) -> None:
        self._machine, self._records, self._timeout_s = machine, records, timeout_s

    def wait_for_agreement(self) -> None:
        """Wait until the lock of the two-phase protocol is free; ``tick`` ends it in any case.

        Raises
        ------
        CollectiveError
            A rank has ended, or the time is over.
        """
        machine, end_s = self._machine, time.monotonic() + self._timeout_s
        while not machine.state.agreement.can_start:
            machine.changed.wait(0.002)
            machine.receive_from_controller()
            if lost := self._dead_peers():
                raise PeerLostError(f"rank {min(lost)} ended while the ranks agreed on a view")
            if time.monotonic() > end_s:
                raise CollectiveError(f"no agreement on a view within {self._timeout_s:g} s")

    def wait_for_votes(self, number: int) -> bytes | None:
        """Wait until the ranks have decided an AllReduce that failed on the switch.

        Returns
        -------
        bytes or None
            Sum of a peer that has it, or None if the AllReduce is to run by ring.

        Raises
        ------
        CollectiveError
            Sizes differ over the ranks, a rank ended whose vote is missing, or the time is over.
        """
        machine, size_bytes = self._machine, self._machine.size_bytes
        end_s = time.monotonic() + self._timeout_s
        with machine.changed:
            while machine.state.number == number and machine.state.phase is Phase.VOTING:
                if lost := self._dead_peers() - set(self._records.ballots(number)):
                    self._records.check_votes(number, size_bytes)
                    raise PeerLostError(
                        f"rank {min(lost)} closed its connection during AllReduce {number}; "
                        "it has ended, or cannot be reached"
                    )
                if time.monotonic() > end_s:
                    raise CollectiveError(f"no vote of all ranks within {self._timeout_s:g} s")
                machine.changed.wait(_WAIT_S)
            self._records.check_votes(number, size_bytes)
            ballots = self._records.take_ballots(number)
        if machine.state.number == number:
            return None
        return next(b.data for b in ballots.values() if b.vote.min_epoch is not None)

    def check_peers(self, order: int, size_bytes: int) -> None:
        """Raise an error if a peer has ended, or waits for this AllReduce with another size.

        Raises
        ------
        CollectiveError
            Sizes differ over the ranks, or a rank has ended.
        """
        if lost := self._dead_peers():
            raise PeerLostError(f"rank {min(lost)} closed its connection; it has ended")
        self._records.check_stalled(order, size_bytes)

    def leave(self, timeout_s: float) -> None:
        """Announce that this rank leaves; wait until no peer can need its last sum."""
        machine = self._machine
        assert machine.peers is not None
        with machine.changed:
            number, is_needed = machine.state.number, machine.state.last_min_epoch is not None
        machine.peers.broadcast(Goodbye(number))
        end_s = time.monotonic() + timeout_s
        with machine.changed:
            while is_needed and (left_s := end_s - time.monotonic()) > 0:
                lost = machine.peers.lost
                if all(
                    self._records.left_at.get(peer, -1) >= number or peer in lost
                    for peer in machine.state.member.peers
                ):
                    return
                machine.changed.wait(min(left_s, _WAIT_S))

    def _dead_peers(self) -> set[int]:
        """Return the ranks that ended before they had completed the current AllReduce."""
        machine = self._machine
        lost = set(machine.peers.lost if machine.peers is not None else ())
        at = self._records.left_at
        return {rank for rank in lost if at.get(rank, -1) <= machine.state.number}
