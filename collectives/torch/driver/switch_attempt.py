"""Attempt of a rank to sum its current AllReduce on the switch.

A vote of a peer on that AllReduce is held back until the outcome is known: to the state machine it
is a message that takes long.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from presage.collectives.core import messages as m
from presage.collectives.core import rank as core_rank
from presage.collectives.core.rank import Phase
from presage.collectives.switch.errors import NoSlotError, RefusedError, SwitchError
from presage.collectives.torch.driver.rank_machine import RankMachine
from presage.collectives.torch.switch_link import SwitchLink

_GRACE_S = 1.0  # for the switch, after a peer's vote


class SwitchAttempt:
    """Sum on the switch with the votes that arrive meanwhile.

    Attributes
    ----------
    is_under_way : bool
        Whether the current AllReduce goes to the switch and has no outcome yet.
    """

    def __init__(self, machine: RankMachine, link: SwitchLink) -> None:
        self.is_under_way = False
        self._machine, self._link = machine, link
        self._held_votes: list[m.Vote] = []
        self._held_since_s = 0.0

    def sum_on_switch(
        self, buffer: NDArray[np.float32], number: int, epoch: int
    ) -> SwitchError | None:
        """Replace the buffer by the sum over the ranks; return the error if there is one."""
        if self._machine.state.phase is not Phase.INC:
            return SwitchError("a peer has given up already")
        try:
            self._link.all_reduce(buffer, number, epoch)
        except SwitchError as error:
            return error
        return None

    def hold(self, vote: m.Vote) -> None:
        """Hold back the vote of a peer; the lock is held."""
        self._held_votes.append(vote)
        self._held_since_s = self._held_since_s or time.monotonic()

    def is_overdue(self, now_s: float) -> bool:
        """Return whether a peer has voted, and the switch has not answered for a while."""
        return bool(self._held_votes) and now_s > self._held_since_s + _GRACE_S

    def end(self, number: int, min_epoch: int, error: SwitchError | None) -> tuple[m.Message, ...]:
        """Take over the outcome and the votes held back; return what is to be sent.

        The lock is held.

        Parameters
        ----------
        min_epoch : int
            Smallest epoch of the ranks, as a part of the result.
        error : SwitchError or None
            Outcome; None if the buffer has the sum.
        """
        self.is_under_way = False
        sent = self._machine.take(self._own_step(number, min_epoch, error))
        held, self._held_votes, self._held_since_s = self._held_votes, [], 0.0
        for vote in held:
            sent += self._machine.take(core_rank.receive(self._machine.state, vote))
        return sent

    def _own_step(self, number: int, min_epoch: int, error: SwitchError | None) -> core_rank.Step:
        state, place = self._machine.state, self._machine.place
        if error is None:
            return core_rank.receive(state, m.Result(*place, number, min_epoch))
        if state.phase is not Phase.INC:
            return core_rank.Step(state)  # began with a vote
        if isinstance(error, RefusedError):
            is_busy = isinstance(error, NoSlotError)
            reason = m.RefusalReason.BUSY if is_busy else m.RefusalReason.STALE
            return core_rank.receive(state, m.Refusal(*place, number, reason))
        return core_rank.vote(state)
